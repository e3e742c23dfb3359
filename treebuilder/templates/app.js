// The frame: what is chosen stands in the address, keys and clicks change it, pieces from a live server add to it.

const root = document.documentElement;
const state = { session: '', turn: null, view: 'context', place: null, find: '', pane: 'calls', folded: false, query: '' };
const opened = new Set();

const icon = (name, label, text, onclick) => h('button', { class: `icon ${name}`, type: 'button', 'aria-label': label, title: label, onclick }, text);

const list = makeList({
  select: (turn) => go(turn, { replace: true, pane: state.pane }),
  open: (turns, folded) => {
    if (folded) opened.add(turns[0].index);
    if (folded) listShown = '';
    go(turns[turns.length - 1], { pane: 'detail' });
  },
});
const chart = makeChart({ select: (turn) => go(turn, {}) });
const detail = makeDetail({ go: (turn, options) => go(turn, { ...options, pane: 'detail' }), close: () => back() });

const search = h('input', {
  type: 'search', id: 'search', placeholder: 'Search all messages', 'aria-label': 'Search all messages',
  autocomplete: 'off', spellcheck: 'false', oninput: () => later(runSearch), onkeydown: (event) => inSearch(event),
});
const results = h('div', { class: 'results', role: 'region', 'aria-label': 'Search results', hidden: true, onkeydown: (event) => inResults(event) });
const foldBox = h('input', { type: 'checkbox', id: 'fold', onchange: () => setFold(foldBox.checked) });
const status = h('span', { class: 'live', role: 'status' });
const sessions = h('nav', { class: 'sessions', 'aria-label': 'Sessions' });
const sessionsButton = icon('menu', 'Sessions', '☰', () => setPane(state.pane === 'sessions' ? 'calls' : 'sessions'));
const tip = h('span', { class: 'tip' }, 'pale: its reply is no longer in the chosen context');
const numbersButton = h('button', { class: 'more numbers', type: 'button', onclick: () => showNumbers() }, 'Statistics');
const toolbar = h('div', { class: 'toolbar' }, h('label', { for: 'fold' }, foldBox, 'Fold appends'), h('span', { class: 'push' }), tip, numbersButton);
const heading = h('div', { class: 'heading' });
const calls = h('section', { class: 'tree', 'aria-label': 'Calls' },
  heading, chart.element, toolbar,
  list.element, results);
document.getElementById('app').append(
  h('header', { class: 'bar' },
    sessionsButton, h('h1', {}, 'memorywalker'), h('span', { class: 'push' }), status, search,
    icon('theme', 'Light or dark', '◐', () => setTheme()), icon('keys', 'Keys and shapes', '?', () => help.showModal())),
  h('main', { class: 'frame' }, sessions, calls, detail.element),
  help,
);

// ---- what is chosen

function readAddress() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  const turn = data.byNumber.get(wanted.get('call') || '') || null;
  const session = turn ? turn.session : data.bySession.has(wanted.get('session')) ? wanted.get('session') : '';
  const place = wanted.get('message');
  const view = wanted.get('view');
  Object.assign(state, {
    turn,
    session: session || state.session || (data.sessions.length ? data.sessions[root.dataset.live === 'yes' ? data.sessions.length - 1 : 0].id : ''),
    view: turn && view in VIEWS && (view !== 'edit' || hasEdit(turn)) ? view : turn ? firstView(turn) : 'context',
    place: place === null || !/^\d+$/.test(place) ? null : Number(place),
    find: wanted.get('find') || '',
  });
  return turn;
}

function go(turn, { view, replace = false, pane } = {}) {
  const address = link(turn, view);
  if (address !== location.hash) history[replace ? 'replaceState' : 'pushState'](null, '', address);
  readAddress();
  setPane(pane || state.pane, { drawn: false });
  render();
}

function back() {
  if (root.dataset.narrow === 'yes') {
    setPane('calls');
    return list.scroller.focus();
  }
  history.pushState(null, '', '#session=' + encodeURIComponent(state.session));
  readAddress();
  render();
  return list.scroller.focus();
}

function setPane(pane, { drawn = true } = {}) {
  state.pane = pane;
  root.dataset.pane = pane;
  sessionsButton.setAttribute('aria-expanded', String(pane === 'sessions'));
  if (drawn) render();
}

// ---- drawing

let listShown = '';

function render() {
  const turns = turnsOf(state.session);
  const session = data.sessions.find((one) => one.id === state.session);
  root.dataset.sessions = data.sessions.length > 1 ? 'many' : 'one';
  document.title = (state.turn ? `Call ${state.turn.number} · ` : '') + (state.session || 'no calls yet') + ' · memorywalker';
  drawSessions();
  heading.replaceChildren(...(session ? headingOf(session, turns) : [h('h2', {}, 'No calls yet')]));
  const key = [state.session, state.folded, turns.length, data.turns.length, changes].join();
  if (key !== listShown) {
    list.show(turns, { folded: state.folded, opened });
    listShown = key;
  }
  list.choose(state.turn ? state.turn.index : -1, { scroll: scrollWanted });
  tip.hidden = !state.turn || state.turn.aside;
  chart.show(turns, state.turn);
  const term = state.find ? asTerm(state.find) : null;
  if (state.turn) detail.show(state.turn, state.view, { place: state.place, term });
  else detail.empty(session ? statisticsElement(session) : [h('p', { class: 'note' }, 'Calls appear here as they end.')]);
}

let sessionsShown = -1;

/** Cards stay the same elements while nothing new came: scroll and focus stay where they are. */
function drawSessions() {
  if (sessionsShown !== changes) {
    const at = sessions.scrollTop;
    sessions.replaceChildren(h('h2', {}, count(data.sessions.length, 'session')), ...data.sessions.map(sessionCard));
    sessions.scrollTop = at;
    sessionsShown = changes;
  }
  data.sessions.forEach((one, i) => {
    const card = sessions.children[i + 1];
    const chosen = one.id === state.session;
    if (chosen && !card.classList.contains('chosen')) card.scrollIntoView({ block: 'nearest' });
    card.classList.toggle('chosen', chosen);
    if (chosen) card.setAttribute('aria-current', 'true');
    else card.removeAttribute('aria-current');
  });
}

let scrollWanted = true;
let changes = 0;

function headingOf(session, turns) {
  const n = session.statistics;
  const gone = Object.values(n.evicted_chars || {}).reduce((sum, chars) => sum + chars, 0);
  return [
    h('h2', { title: session.id }, session.id),
    h('p', { class: 'facts' }, [
      session.harness, session.models.join(', '), count(turns.length, 'call'), count(n.branches, 'branch', 'branches'),
      gone ? `${amount(gone)} characters evicted` : 'nothing evicted',
    ].filter(Boolean).map((fact) => h('span', {}, fact))),
  ];
}

/** Where only one pane fits, they have to be asked for. */
function showNumbers() {
  history.pushState(null, '', '#session=' + encodeURIComponent(state.session));
  readAddress();
  setPane('detail');
}

function setFold(folded) {
  state.folded = foldBox.checked = folded;
  opened.clear();
  render();
}

function setTheme() {
  const dark = root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  root.dataset.theme = dark ? 'light' : 'dark';
  save('theme', root.dataset.theme);
}

// ---- the address and the window

addEventListener('hashchange', () => {
  const turn = readAddress();
  setPane(turn ? 'detail' : 'calls', { drawn: false });
  render();
});
addEventListener('popstate', () => {
  const turn = readAddress();
  setPane(turn && state.pane === 'detail' ? 'detail' : 'calls', { drawn: false });
  render();
});

const narrow = matchMedia('(max-width: 800px)');
const setNarrow = () => {
  root.dataset.narrow = narrow.matches ? 'yes' : 'no';
  listShown = '';
  if (state.session) render();
};
narrow.addEventListener('change', setNarrow);
let resized = 0;
addEventListener('resize', () => {
  cancelAnimationFrame(resized);
  resized = requestAnimationFrame(() => chart.show(turnsOf(state.session), state.turn));
});

// ---- start, and what comes later

const pieces = JSON.parse(document.getElementById('data').textContent);
document.getElementById('data').remove();
pieces.forEach(take);
if (saved('theme')) root.dataset.theme = saved('theme');
setNarrow();
const linked = readAddress();
setPane(linked ? 'detail' : data.sessions.length > 1 && narrow.matches && !location.hash ? 'sessions' : 'calls', {
  drawn: false,
});
render();

if (root.dataset.live === 'yes') {
  const events = new EventSource('events?after=' + pieces.length);
  const say = (word, text) => {
    status.dataset.state = word;
    status.textContent = text;
  };
  events.addEventListener('open', () => say('on', 'live'));
  events.addEventListener('error', () => say('off', events.readyState === 2 ? 'server ended' : 'reconnecting'));
  events.addEventListener('failure', (event) => {
    events.close();
    say('off', 'stopped: ' + cut(event.data, 120));
  });
  events.addEventListener('message', (event) => {
    const before = data.turns.length;
    const empty = before === 0;
    take(JSON.parse(event.data));
    changes += 1;
    readAddress();
    scrollWanted = empty;
    render();
    scrollWanted = true;
    list.arrived(data.turns.slice(before).filter((turn) => turn.session === state.session).length);
  });
}
