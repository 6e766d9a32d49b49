"""Uses the signals of annotators and fewl: rewards, correction, recipes, the command line."""
