// Runs once per component of views: `element` holds them, `watch` tells when their HTML was written anew.
// Choosing a sentence of a view shows its card and marks its evidence; choosing evidence goes the other way.
// Nothing here reads text of a record.
const chosen = new Map(); // place of a view -> {run, index}; index "" = the reader closed the card
const narrow = matchMedia('(max-width: 52rem)'); // there the card is a sheet over the page, and waits to be asked for
const views = () => Array.from(element.querySelectorAll('.mt-view'));

function show(view, index, byReader) {
  for (const s of view.querySelectorAll('.s[data-s]')) {
    const on = s.dataset.s === index;
    s.classList.toggle('on', on);
    s.setAttribute('aria-pressed', String(on));
    s.tabIndex = on || (index === '' && s.dataset.s === '1') ? 0 : -1;
    if (on && byReader) s.focus({ preventScroll: true });
  }
  for (const card of view.querySelectorAll('.card')) card.hidden = card.dataset.card !== index;
  const cards = view.querySelector('.cards');
  if (cards) cards.hidden = !cards.querySelector('.card:not([hidden])');
  for (const e of view.querySelectorAll('mark')) e.classList.toggle('on', e.dataset.e.split(' ').includes(index));
  const first = view.querySelector('mark.on');
  const box = view.querySelector('.reference');
  if (box && first) {
    const top = first.getBoundingClientRect().top - box.getBoundingClientRect().top;
    if (top < 0 || top > box.clientHeight - 40) box.scrollTop += top - 16;
  }
}

function choose(view, index, byReader) {
  chosen.set(views().indexOf(view), { run: view.dataset.run, index });
  show(view, index, byReader);
}

let run = null; // of the first view: a new one is not stale, and comes into sight
function refresh() {
  const now = views()[0]?.dataset.run;
  if (now !== run) element.closest('.block').classList.remove('stale');
  if (now && now !== run) element.scrollIntoView({ block: 'start', behavior: 'smooth' });
  run = now;
  views().forEach((view, place) => {
    const kept = chosen.get(place);
    if (kept && kept.run === view.dataset.run) show(view, kept.index, false);
    else if (view.dataset.first && !narrow.matches) choose(view, view.dataset.first, false);
    else show(view, '', false);
  });
}

function step(view, by) {
  const all = view.querySelectorAll('.s[data-s]').length;
  const kept = chosen.get(views().indexOf(view));
  if (by === 0) return choose(view, '', true);
  const at = kept && kept.index !== '' ? Number(kept.index) : by > 0 ? 0 : 1;
  if (all) choose(view, String(((at - 1 + by + all) % all) + 1), true);
}

element.addEventListener('click', (event) => {
  const view = event.target.closest('.mt-view');
  const sentence = event.target.closest('.s[data-s]');
  const button = event.target.closest('[data-step]');
  const evidence = event.target.closest('mark[data-e]');
  if (view && sentence) choose(view, sentence.classList.contains('on') ? '' : sentence.dataset.s, true);
  else if (view && button) step(view, Number(button.dataset.step));
  else if (view && event.target.dataset.label) trigger('select', { sentence: chosen.get(views().indexOf(view)).index, label: event.target.dataset.label });
  else if (view && evidence) choose(view, evidence.dataset.e.split(' ')[0], true);
});

element.addEventListener('keydown', (event) => {
  const sentence = event.target.closest('.s[data-s]');
  if (!sentence) return;
  const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (by) step(sentence.closest('.mt-view'), by);
  else if (event.key === 'Enter' || event.key === ' ') sentence.click();
  else return;
  event.preventDefault();
});

function named() { // what a screen reader says of parts that Gradio draws when their tab is first opened
  for (const box of document.querySelectorAll('.search-input:not([aria-label])')) box.ariaLabel = box.title;
  for (const box of document.querySelectorAll('.upload-container[aria-label]')) box.ariaLabel = null; // not what it shows
}

// Ctrl+Enter presses the tab's main button, Esc its Stop button or closes the card.
if (!document.body.dataset.mtKeys) {
  document.body.dataset.mtKeys = 'on';
  new MutationObserver(named).observe(document.body, { childList: true, subtree: true });
  window.addEventListener('hashchange', () => location.reload()); // another link was pasted over this one
  document.addEventListener('keydown', (event) => {
    const seen = (name) => Array.from(document.querySelectorAll(name)).find((e) => e.offsetParent && !e.disabled);
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) seen('.mt-run')?.click();
    else if (event.key === 'Escape') (seen('.mt-stop') ?? seen('.mt-view .s.on'))?.click();
  });
}

watch('value', refresh);
refresh();
