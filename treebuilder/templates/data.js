// The tables of treebuilder/page_data.py, and what can be read off them.

const data = {
  blocks: [],
  messages: [],
  nodes: [],
  tools: [],
  heads: [],
  turns: [],
  sessions: [],
  byNumber: new Map(),
  bySession: new Map(),
};

/** Takes a piece in; the turns that it told. */
function take(piece) {
  for (const name of ['blocks', 'messages', 'nodes', 'tools', 'heads']) for (const one of piece[name]) data[name].push(one);
  for (const turn of piece.turns) data.turns[turn.index] = turn;
  for (const session of piece.sessions) {
    const at = data.sessions.findIndex((known) => known.id === session.id);
    if (at < 0) data.sessions.push(session);
    else data.sessions[at] = session;
  }
  data.byNumber.clear();
  data.bySession.clear();
  for (const turn of data.turns) {
    if (!data.byNumber.has(turn.number)) data.byNumber.set(turn.number, turn);
    if (!data.bySession.has(turn.session)) data.bySession.set(turn.session, []);
    data.bySession.get(turn.session).push(turn);
  }
  data.sessions = data.sessions.filter((session) => data.bySession.has(session.id));
  return piece.turns;
}

const turnsOf = (session) => data.bySession.get(session) || [];
const turnAt = (index) => (index >= 0 ? data.turns[index] : undefined);
const model = (turn) => data.heads[turn.head].model;
const evicted = (turn) => (turn.edit ? turn.edit.evicted_chars : 0);
const inserted = (turn) => (turn.edit ? turn.edit.inserted_chars : 0);
const isEdit = (turn) => !turn.aside && !['append', 'root', 'retry', 'summary_request'].includes(turn.kind);

/** Message numbers of the context that ends in a node, from the top. */
function walk(node) {
  const found = [];
  for (; node >= 0; node = data.nodes[node][0]) found.push(data.nodes[node][1]);
  return found.reverse();
}

const blocksOf = (message) => data.messages[message][1].map((b) => data.blocks[b]);

/** A block's visible text, parts joined by newlines; spans of an edit count in it. */
function plain(block) {
  return block.parts ? [block.text, ...block.parts.map(plain)].join('\n') : block.text;
}

function size(block) {
  return block.text.length + (block.name || '').length + (block.parts || []).reduce((sum, part) => sum + size(part), 0);
}

/** message index in a turn's context -> [turn that sampled it, word for word]. As `Trajectory.echoes`. */
function echoes(turn) {
  const found = new Map();
  let limit = Infinity;
  for (let at = turn; at && limit > 0; at = turnAt(at.parent)) {
    for (const [message, length, source, exact] of at.echoes) {
      for (let i = message; i < message + length; i++) if (i < limit && !found.has(i)) found.set(i, [source, exact]);
    }
    limit = Math.min(limit, at.prefix);
  }
  return found;
}

/** Calls whose reply the context of a turn still holds, itself included. */
function survivors(turn) {
  return new Set([turn.index, ...[...echoes(turn).values()].map(([source]) => source)]);
}

const SUMMARY = ['summary_request', 'summarized'];
const AWAY = ['cleared', 'truncated', 'thinking_dropped', 'window_dropped', 'deleted', 'pointer', 'replaced'];
const BACK = ['rewound', 'forked', 'interrupted', 'continued'];
const HEAD = ['system_changed', 'tools_changed', 'model_switched'];

/** The family of a kind: its colour and its shape. Kinds not named here are edits of no family. */
function family(turn) {
  const kind = turn.kind;
  if (turn.aside) return 'aside';
  if (kind === 'append' || kind === 'retry') return 'grow';
  if (kind === 'root') return 'root';
  if (kind === 'unknown') return 'unknown';
  if (SUMMARY.includes(kind)) return 'summary';
  if (AWAY.includes(kind)) return 'away';
  if (BACK.includes(kind)) return 'back';
  if (HEAD.includes(kind)) return 'head';
  return kind.startsWith('reminder') ? 'reminder' : 'away';
}
