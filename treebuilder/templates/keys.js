// What the keys do, and the list that says so.

const KEYS = [
  ['j, ↓', 'next call'],
  ['k, ↑', 'previous call'],
  ['e, E', 'next, previous edit of the context'],
  ['g, G', 'first, last call'],
  ['Enter', 'into the call; ← → there change the view'],
  ['Esc', 'back to the calls; out of the search'],
  ['/', 'search in all messages'],
  ['f', 'fold runs of appends'],
  ['t', 'light or dark'],
  ['?', 'this list'],
];

const help = h('dialog', { class: 'help', 'aria-labelledby': 'help-title' },
  h('h2', { id: 'help-title' }, 'Keys'),
  h('dl', {}, KEYS.flatMap(([key, what]) => [h('dt', {}, key.split(', ').flatMap((one, i) => [i ? ' ' : '', h('kbd', {}, one)])), h('dd', {}, what)])),
  h('h2', {}, 'Shapes'),
  h('ul', { class: 'shapes' }, [
    ['root', 'a context begins'], ['grow', 'it grew'], ['summary', 'a summary asked for, or put in its place'],
    ['away', 'something was taken out'], ['back', 'rewound or forked'], ['head', 'system text, tools or model changed'],
    ['reminder', 'a reminder came, went or moved'], ['aside', 'a helper call beside the conversation'], ['unknown', 'not known'],
  ].map(([name, what]) => h('li', {}, s('svg', { class: 'badge', width: 16, height: 16, 'aria-hidden': 'true' }, glyph(name, 8, 8)), what))),
  h('form', { method: 'dialog' }, h('button', { class: 'button' }, 'Close')));

const actions = {
  j: () => list.step(1),
  k: () => list.step(-1),
  ArrowDown: () => list.step(1),
  ArrowUp: () => list.step(-1),
  g: () => list.toEnd(-1),
  G: () => list.toEnd(1),
  Home: () => list.toEnd(-1),
  End: () => list.toEnd(1),
  e: () => list.toEdit(1),
  E: () => list.toEdit(-1),
  f: () => setFold(!state.folded),
  t: () => setTheme(),
  '/': () => search.focus(),
  '?': () => help.showModal(),
  Enter: () => {
    if (!state.turn) return;
    setPane('detail');
    detail.scroller.focus();
  },
  Escape: () => {
    if (state.query) endSearch();
    else if (state.pane === 'sessions') setPane('calls');
    else if (document.activeElement === list.scroller && state.turn) back();
    else if (state.pane === 'detail' && root.dataset.narrow === 'yes') back();
    else list.scroller.focus();
  },
};
const ONLY_IN_LIST = ['ArrowDown', 'ArrowUp', 'Home', 'End', 'Enter'];

document.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || help.open || event.target === search) return;
  const inList = event.target === list.scroller || event.target === document.body;
  if (!(event.key in actions) || (ONLY_IN_LIST.includes(event.key) && !inList)) return;
  event.preventDefault();
  actions[event.key]();
});

