// SPDX-License-Identifier: Apache-2.0
// Parts of the page without a browser: what it does with lists and with numbers of workers. The argument is its folder.
import assert from 'node:assert/strict';

// As much of a document as dom.js uses.
class Part {
  constructor(name, data) {
    Object.assign(this, {nodeType: data == null ? 1 : 3, nodeName: name, tagName: name, data, childNodes: [], parent: null, named: new Map()});
  }
  get attributes() {
    return [...this.named].map(([name, value]) => ({name, value}));
  }
  getAttribute = (name) => this.named.get(name) ?? null;
  setAttribute = (name, value) => this.named.set(name, String(value));
  hasAttribute = (name) => this.named.has(name);
  removeAttribute = (name) => this.named.delete(name);
  get lastChild() {
    return this.childNodes.at(-1);
  }
  get textContent() {
    return this.data ?? this.childNodes.map((c) => c.textContent).join('');
  }
  remove() {
    this.parent?.childNodes.splice(this.parent.childNodes.indexOf(this), 1);
    this.parent = null;
  }
  insertBefore(n, before) {
    n.remove();
    this.childNodes.splice(before ? this.childNodes.indexOf(before) : this.childNodes.length, 0, n);
    n.parent = this;
  }
  append(...all) {
    for (const c of all) this.insertBefore(c instanceof Part ? c : new Part('#text', c), null);
  }
  replaceWith(n) {
    this.parent.insertBefore(n, this);
    this.remove();
  }
}
const top = new Part('DIV');
globalThis.document = {getElementById: () => top, createElement: (name) => new Part(name.toUpperCase()), createTextNode: (text) => new Part('#text', text)};
globalThis.sessionStorage = {getItem: () => null};
let answer;
globalThis.fetch = async () => new Response(answer);

const {h, show} = await import(`${process.argv[2]}/dom.js`);
const {get} = await import(`${process.argv[2]}/api.js`);

// Two requests may have one id, and two kinds of trouble one title.
const lists = ['a', 'aa', 'baa', 'abaa', 'cab', 'aaa', '', 'bb', 'abb', 'bab'];
for (const keys of lists) {
  const wanted = [...keys].map((k, i) => `${k}${i} of ${keys}`);
  show('top', ...wanted.map((text) => h('li', {'data-key': text[0]}, text)));
  assert.deepEqual(top.childNodes.map((c) => c.textContent), wanted);
}

// What has a key of its own stays itself.
show('top', h('li', {'data-key': 'x'}, '1'), h('li', {'data-key': 'y'}, '2'));
const [x, y] = top.childNodes;
show('top', h('li', {'data-key': 'z'}, '0'), h('li', {'data-key': 'x'}, '1'), h('li', {'data-key': 'y'}, '3'));
assert.deepEqual(top.childNodes.slice(1), [x, y]);
assert.equal(y.textContent, '3');

// A worker's number has 64 bits.
answer = '[{"worker_id":18446744073709551615,"why":"\\"worker_id\\":1234567890123456789"},{"worker_id":7}]';
const workers = await get('workers');
assert.deepEqual(workers.map((w) => w.worker_id), ['18446744073709551615', 7]);
assert.equal(workers[0].why, '"worker_id":1234567890123456789');
