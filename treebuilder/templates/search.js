// Search in the text of every message that any call held or sampled.

const MOST_HITS = 200;

/** Where each message first stood: message -> [turn, place]; a reply stands behind its call's context. */
function holders() {
  const seen = new Uint8Array(data.nodes.length);
  const found = new Map();
  for (const turn of data.turns) {
    const chain = [];
    for (let node = turn.node; node >= 0 && !seen[node]; node = data.nodes[node][0]) {
      seen[node] = 1;
      chain.push(data.nodes[node][1]);
    }
    let place = turn.depth - chain.length;
    for (const message of chain.reverse()) {
      if (!found.has(message)) found.set(message, [turn, place]);
      place += 1;
    }
    if (turn.reply && !found.has(turn.reply.message)) found.set(turn.reply.message, [turn, turn.depth]);
  }
  return found;
}

const asTerm = (text) => new RegExp(text.trim().replace(/[.*+?^${}()|[\]\\]/g, '\\$&').replace(/\s+/g, '\\s+'), 'gi');

/** Hits in order of calls: {turn, place, role, before, hit, after}; and how many there are in all. */
function find(text) {
  const term = asTerm(text);
  const matching = new Map();
  data.blocks.forEach((block, i) => {
    const told = (block.name ? block.name + ' ' : '') + plain(block);
    term.lastIndex = 0;
    const hit = term.exec(told);
    if (hit) matching.set(i, [told, hit.index, hit[0].length]);
  });
  const hits = [];
  for (const [message, [turn, place]] of holders()) {
    const [role, blocks] = data.messages[message];
    const block = blocks.find((b) => matching.has(b));
    if (block === undefined) continue;
    const [told, at, length] = matching.get(block);
    hits.push({
      turn,
      place,
      role: place === turn.depth ? 'sampled' : role,
      before: (at > 60 ? '…' : '') + told.slice(Math.max(0, at - 60), at).replace(/\s+/g, ' '),
      hit: told.slice(at, at + length),
      after: told.slice(at + length, at + length + 120).replace(/\s+/g, ' ') + (told.length > at + length + 120 ? '…' : ''),
    });
  }
  hits.sort((a, b) => a.turn.index - b.turn.index || a.place - b.place);
  return hits;
}

function hitList(text, hits, { several }) {
  const shown = hits.slice(0, MOST_HITS);
  return [
    h('p', { class: 'note', role: 'status' },
      hits.length ? `${count(hits.length, 'message')} with “${cut(text, 40)}”` + (hits.length > MOST_HITS ? `; the first ${MOST_HITS}` : '')
        : `No message holds “${cut(text, 40)}”`),
    h('ul', { class: 'hits' }, shown.map(({ turn, place, role, before, hit, after }) =>
      h('li', {},
        h('a', { href: `#call=${encodeURIComponent(turn.number)}&view=context&message=${place}&find=${encodeURIComponent(text)}` },
          h('span', { class: 'where' }, h('b', {}, 'Call ' + turn.number), h('span', { class: 'role' }, role),
            several && h('span', { class: 'quiet' }, cut(turn.session, 18))),
          h('span', { class: 'snippet' }, before, h('mark', { class: 'hit' }, hit), after))))),
  ];
}

let timer = 0;
const later = (work) => {
  clearTimeout(timer);
  timer = setTimeout(work, 120);
};

function runSearch() {
  const text = search.value.trim();
  if (text === state.query) return;
  state.query = text;
  results.hidden = !text;
  list.element.hidden = toolbar.hidden = Boolean(text);
  if (text && state.pane !== 'calls') setPane('calls');
  results.replaceChildren(...(text ? hitList(text, find(text), { several: data.sessions.length > 1 }) : []));
  results.scrollTop = 0;
  if (!text) render();
}

function endSearch() {
  search.value = '';
  runSearch();
  list.scroller.focus();
}

function inSearch(event) {
  if (event.key === 'Escape') endSearch();
  if (event.key === 'Enter') {
    runSearch();
    const first = results.querySelector('a');
    if (first) first.click();
  }
  if (event.key === 'ArrowDown') {
    const first = results.querySelector('a');
    if (first) first.focus();
    event.preventDefault();
  }
  event.stopPropagation();
}

function inResults(event) {
  const links = [...results.querySelectorAll('a')];
  const at = links.indexOf(document.activeElement);
  const by = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[event.key];
  if (by) {
    event.preventDefault();
    event.stopPropagation();
    (links[at + by] || (by < 0 ? search : links[at])).focus();
  }
}
