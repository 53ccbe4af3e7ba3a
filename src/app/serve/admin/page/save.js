// SPDX-License-Identifier: Apache-2.0
// What is shown, as files. They are asked for here, as a link would not send the key.
import * as api from './api.js';

// A member of an object within is "object.member"; a list is its JSON.
function cells(o, before = '', out = {}) {
  for (const [name, v] of Object.entries(o))
    if (v !== null && typeof v === 'object' && !Array.isArray(v)) cells(v, `${before}${name}.`, out);
    else out[before + name] = Array.isArray(v) ? JSON.stringify(v) : v;
  return out;
}

// What a client has named might begin a formula for who opens the table: it becomes a text.
const quoted = (v) => (typeof v === 'string' ? `"${v.replace(/^[=+\-@\t\r]/, "'$&").replaceAll('"', '""')}"` : (v ?? ''));

export function csv(rows) {
  const lines = rows.map((r) => cells(r)),
    names = [...new Set(lines.flatMap(Object.keys))];
  return [names.map(quoted), ...lines.map((l) => names.map((n) => quoted(l[n])))].map((l) => `${l.join(',')}\r\n`).join('');
}

const FILES = {
  'workers.csv': async () => csv(await api.get('workers')),
  'decisions.csv': async () => csv(await api.get('decisions')),
  'hour.csv': async () => csv((await api.get('history')).points),
  'status.json': async () => JSON.stringify(await api.get('status'), null, 1),
  'metrics.txt': () => api.getText('metrics'),
};
export const files = Object.keys(FILES);

export async function save(name) {
  const url = URL.createObjectURL(new Blob([await FILES[name]()]));
  const a = Object.assign(document.createElement('a'), {href: url, download: `kvroute-${location.hostname}-${name}`});
  a.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
