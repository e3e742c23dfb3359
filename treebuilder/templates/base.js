// Elements and words. Text only ever enters the page through textContent.

const SVG = 'http://www.w3.org/2000/svg';

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
  return element;
}

const h = (tag, properties, ...children) => fill(document.createElement(tag), properties, children);
const s = (tag, properties, ...children) => fill(document.createElementNS(SVG, tag), properties, children);

/** `941`, `9.1k`, `1.2M`. */
function amount(n) {
  if (n < 1000) return String(n);
  return n < 999500 ? (n / 1000).toFixed(n < 99950 ? 1 : 0) + 'k' : (n / 1e6).toFixed(1) + 'M';
}

const whole = (n) => n.toLocaleString('en-US');
const count = (n, one, many) => `${whole(n)} ${n === 1 ? one : many || one + 's'}`;
const percent = (x) => (x > 0 && x < 0.01 ? '<1 %' : Math.round(x * 100) + ' %');
const words = (kind) => kind.replaceAll('_', ' ');
const cut = (text, limit) => (text.length > limit ? text.slice(0, limit - 1) + '…' : text);
const oneLine = (text, limit) => cut(text.slice(0, limit * 3).replace(/\s+/g, ' ').trim(), limit);

/** Local wall clock; a page that is passed on shows each reader their own. */
function clock(at) {
  if (!at) return '';
  return new Date(at * 1000).toLocaleTimeString('en-GB');
}

function day(at) {
  if (!at) return '';
  const d = new Date(at * 1000);
  return d.toLocaleDateString('en-GB', { day: 'numeric', month: 'short', year: 'numeric' }) + ', ' + clock(at);
}

/** `30 Nov, 21:26`. */
function soon(at) {
  const d = new Date(at * 1000);
  return `${d.toLocaleDateString('en-GB', { day: 'numeric', month: 'short' })}, ${clock(at).slice(0, 5)}`;
}

function lasting(seconds) {
  if (seconds === null || seconds === undefined) return '';
  if (seconds < 10) return seconds.toFixed(seconds < 1 ? 2 : 1) + ' s';
  return seconds < 120 ? Math.round(seconds) + ' s' : Math.round(seconds / 60) + ' min';
}

/** Characters [start, stop) where both count code points, as Python does, and strings count UTF-16 units. */
function points(text, start, stop) {
  if (!/[\ud800-\udbff][\udc00-\udfff]/.test(text)) return [start, stop];
  let at = 0;
  let from = text.length;
  for (let i = 0; i <= text.length; at++) {
    if (at === start) from = i;
    if (at === stop) return [from, i];
    i += text.codePointAt(i) > 0xffff ? 2 : 1;
  }
  return [from, text.length];
}

function saved(name) {
  try {
    return localStorage.getItem('memorywalker.' + name);
  } catch {
    return null; // a page opened from a file may have no storage
  }
}

function save(name, value) {
  try {
    localStorage.setItem('memorywalker.' + name, value);
  } catch {
    // see saved()
  }
}
