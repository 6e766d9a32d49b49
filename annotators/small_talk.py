"""Sentences without a fact to check, as assistants write them: greetings, refusals, offers, questions, opinions.

Written for training: each is paired with references of the training folds and labelled "no_fact". "{question}"
stands for the row's question, in small letters and without its mark, since refusals repeat what was asked.
"""

from __future__ import annotations

SMALL_TALK = tuple(
    line
    for line in """
Hello!
Hi there, how can I help you today?
Good morning! What would you like to know?
Thank you for your question.
That's a great question!
Thanks for asking.
You're welcome!
I hope this helps!
I hope that answers your question.
Let me know if you have any other questions.
Feel free to ask if you need anything else.
Would you like me to go into more detail?
Do you want to hear more about it?
What do you think?
Have you ever been there yourself?
Is there anything else I can do for you?
I'm sorry, but I can't help with that.
I'm sorry, I don't know the answer to that question.
I am not able to answer this from the given text.
I cannot answer this question based on the information provided.
I don't have enough information to answer that.
I do not have access to that information.
Unfortunately, I can't find anything about this in the document.
I apologise, but I cannot comply with this request.
As an AI language model, I don't have personal opinions.
I am just a language model, so please check this with an expert.
I'm not sure about that.
I'm not certain, but I can try to explain.
I have no idea, to be honest.
Sorry, could you rephrase the question?
Could you please tell me a bit more about what you need?
Please consult a professional before you decide.
Please let me know which one you mean.
Here is a short summary.
Here's what I found.
Here are some points to keep in mind:
Let's go through it step by step.
Let me explain.
Sure, here is the answer.
Sure!
Of course.
Certainly!
Absolutely, I'd be happy to help.
Okay, let's see.
Yes.
No.
Wow, that is interesting!
That sounds like fun.
I love that too!
I think it is a wonderful story.
I really enjoy this kind of music.
In my opinion, it's the best of them all.
Personally, I find it a bit boring.
I would love to visit one day.
I wish I could see it.
It is always good to learn something new.
I can't wait to try it!
You should definitely give it a try.
Have a nice day!
Take care and see you soon.
Good luck with your project!
In short:
To sum up:
For example:
Note:
I understand how you feel.
That must have been hard for you.
It depends on what you are looking for.
We could talk about something else if you like.
What is your favourite one?
Did you know that?
Why do you ask?
My apologies for the confusion.
I made a mistake in my earlier reply.
I will do my best to help you.
I was wondering about that as well.
I cannot provide medical advice.
I won't speculate about that.
There is no way for me to verify this.
The text does not say, so I would rather not guess.
I don't know {question}.
I'm sorry, but I can't tell you {question}.
I am afraid I cannot say {question}, since I have no information about it.
I can't answer the question "{question}" from what I was given.
You asked {question}, and I am not able to help with that.
I'm not able to find out {question}.
Unfortunately, I do not know {question}, so please ask someone who does.
As a language model I can't know {question}.
I would need more details before I could tell you {question}.
Let's talk about {question}.
Are you asking {question}, or something else?
""".split("\n")
    if line
)
"""The sentences, in a fixed order."""
