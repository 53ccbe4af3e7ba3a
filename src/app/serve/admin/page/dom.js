// SPDX-License-Identifier: Apache-2.0
// Elements from data. A part of the page is a function that returns a new tree; show() changes what is there as little as makes it that
// tree, so that the focus, a selection and a scrolled place stay when the figures change every second.

const SVG = 'http://www.w3.org/2000/svg';
const DRAWN = new Set(['svg', 'g', 'rect', 'path', 'line', 'circle', 'defs', 'pattern', 'polyline']);

export function h(tag, attributes, ...children) {
  const e = DRAWN.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {}))
    if (value !== false && value != null) e.setAttribute(name, value === true ? '' : value);
  e.append(...children.flat(3).filter((c) => c != null && c !== false && c !== ''));
  return e;
}

const key = (n) => (n.nodeType === 1 ? (n.getAttribute('data-key') ?? n.tagName) : '#');
const kept = (e, name) => name === 'open' && e.tagName === 'DETAILS'; // it is the reader's

function change(old, now) {
  if (old.nodeType !== now.nodeType || key(old) !== key(now) || old.nodeName !== now.nodeName) {
    old.replaceWith(now);
    return;
  }
  if (now.nodeType !== 1) {
    if (old.data !== now.data) old.data = now.data;
    return;
  }
  for (const a of [...old.attributes]) if (!now.hasAttribute(a.name) && !kept(old, a.name)) old.removeAttribute(a.name);
  for (const a of now.attributes) if (old.getAttribute(a.name) !== a.value && !kept(old, a.name)) old.setAttribute(a.name, a.value);
  children(old, [...now.childNodes]);
}

const ownKey = (n) => n.nodeType === 1 && n.getAttribute('data-key');

// Of nodes with one key, as requests may have one id, each has its number besides.
function ownNames(nodes) {
  const seen = new Map();
  return nodes.map((n) => {
    const k = ownKey(n);
    seen.set(k, (seen.get(k) ?? 0) + 1);
    return k && `${seen.get(k)} ${k}`;
  });
}

// What has a key of its own stays itself: it is moved only where that cannot be helped, as what is moved loses the focus.
function children(old, now) {
  const names = ownNames(now),
    wanted = new Set(names),
    known = new Map(),
    there = [...old.childNodes];
  ownNames(there).forEach((name, i) => {
    if (name && wanted.has(name)) known.set(name, there[i]);
    else if (name) there[i].remove();
  });
  const stay = new Set(known.values());
  now.forEach((n, i) => {
    const own = known.get(names[i]),
      at = () => old.childNodes[i];
    while (own && at() !== own && !stay.has(at())) at().remove();
    if (own && at() !== own) old.insertBefore(own, at());
    if (!at()) old.append(n);
    else if (!own && stay.has(at())) old.insertBefore(n, at());
    else change(at(), n);
  });
  while (old.childNodes.length > now.length) old.lastChild.remove();
}

export function show(id, ...tree) {
  children(
    document.getElementById(id),
    tree
      .flat(3)
      .filter((c) => c != null && c !== false)
      .map((c) => (c.nodeType ? c : document.createTextNode(c))),
  );
}

// Drawn for a square of 16. A state is told by its word and its icon; the colour repeats it.
const ICONS = {
  good: 'M3.5 8.5l3 3 6-7',
  bad: 'M4 4l8 8M12 4l-8 8',
  warn: 'M8 2.2l6.3 11.3H1.7zM8 6.4v3.4M8 11.6v.2',
  idle: 'M5.5 3.5v9M10.5 3.5v9',
  blind: 'M1.5 8S4 3.8 8 3.8 14.5 8 14.5 8 12 12.2 8 12.2 1.5 8 1.5 8zM2.5 13.5l11-11',
  slow: 'M8 2a6 6 0 100 12A6 6 0 008 2zM8 4.8V8l2.3 1.8',
  queue: 'M2 4h12M2 8h8M2 12h5',
  note: 'M8 2a6 6 0 100 12A6 6 0 008 2zM8 7.2v4M8 4.8v.2',
  won: 'M8 1.8l1.9 4 4.3.6-3.1 3 .7 4.3L8 11.7l-3.8 2 .7-4.3-3.1-3 4.3-.6z',
};

export const icon = (name) => h('svg', {class: 'icon', viewBox: '0 0 16 16', 'aria-hidden': 'true'}, h('path', {d: ICONS[name]}));
export const badge = (tone, name, word) => h('span', {class: 'badge', 'data-tone': tone}, icon(name), word);

// Parts of a whole side by side: [[class, value]...]; what is left of `whole` is the track. The text beside it says the same.
export function bar(whole, parts, label) {
  let x = 0;
  const rects = parts.map(([name, value]) => {
    const width = whole > 0 ? Math.min((100 * Math.max(value, 0)) / whole, 100 - x) : 0;
    const r = h('rect', {class: name, x: x.toFixed(2), y: 0, width: width.toFixed(2), height: 10});
    x += width;
    return r;
  });
  return h('svg', {class: 'meter', viewBox: '0 0 100 10', preserveAspectRatio: 'none', role: 'img', 'aria-label': label}, rects);
}
