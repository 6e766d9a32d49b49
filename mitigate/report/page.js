// Search, filter and order of the records of a report. It reads counts and text, and only hides or moves elements.
const bar = document.querySelector('.filter');
if (bar) {
  const [search, show, order, told] = bar.children;
  const main = document.querySelector('main');
  const list = document.querySelector('.overview');
  const all = [...main.querySelectorAll('article')].map((card, place) => ({ card, place, row: list.children[place] }));
  const count = (one, name) => Number(one.card.dataset[name]);
  const texts = all.map((one) => one.card.textContent.toLowerCase());
  const update = () => {
    const words = search.value.toLowerCase().split(/\s+/);
    const by = order.value;
    const sorted = [...all].sort((a, b) => (by && count(b, by) - count(a, by)) || a.place - b.place);
    let left = 0;
    for (const one of sorted) {
      const fits = words.every((word) => texts[one.place].includes(word)) && (!show.value || count(one, show.value) > 0);
      one.card.hidden = one.row.hidden = !fits;
      left += fits;
      main.append(one.card);
      list.append(one.row);
    }
    told.value = `${left} of ${all.length}`;
  };
  bar.addEventListener('input', update);
  bar.hidden = false;
  update();
}
