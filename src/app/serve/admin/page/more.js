// SPDX-License-Identifier: Apache-2.0
// What is configured, as far as the admin port tells it.
import {h} from './dom.js';
import {files} from './save.js';
import {count, ending, some} from './words.js';

const fact = (name, ...value) => h('div', {class: 'fact', 'data-key': name}, h('dt', null, name), h('dd', null, ...value));

function models(status) {
  const by = new Map();
  for (const w of status.workers) {
    const m = by.get(w.model_name) ?? {n: 0, roles: new Set(), sizes: new Set()};
    m.n++;
    m.roles.add(w.role);
    m.sizes.add(w.block_size);
    by.set(w.model_name, m);
  }
  return [...by]
    .sort()
    .map(([name, m]) =>
      fact(
        `Model ${name || '(any)'}`,
        `${some(m.n, 'worker')}, blocks of ${[...m.sizes].join(' or ')} tokens`,
        m.roles.has('prefill') ? ', two legs: prefill and decode workers' : '',
      ),
    );
}

const NAMED = 10;
const SAID = {flag: 'the command line', environment: 'the environment', file: 'the file'};
const SOURCES = {none: 'no file', file: 'a file', api: 'the admin port'};

// The options that were said; all others have their defaults.
const said = (options) =>
  options.map((o) => fact(`--${o.name}`, [o.value].flat().join(', '), h('small', null, ` ${SAID[o.from]}${o.line ? `, line ${o.line}` : ''}`)));

// others: {config, keys, tokenizers, peers, options}, each null where this router has none.
export function facts(status, others) {
  const keys = others.keys?.keys;
  return h(
    'dl',
    null,
    fact('Version', `${status.program ?? 'serve'} ${status.version}`),
    fact('Mode', status.mode),
    fact('Credit for cached blocks', String(status.overlap_score_credit)),
    fact('Weight of computing prompts', String(status.prefill_load_scale)),
    models(status),
    others.config && fact('Names and options of models', `from ${SOURCES[others.config.source] ?? others.config.source}`),
    status.program === 'serve' && [
      fact(
        'Keys of clients',
        keys
          ? `${some(keys.length, 'key')}: ${keys
              .slice(0, NAMED)
              .map((k) => k.name)
              .join(', ')}`
          : 'none: the data port is open to whoever reaches it',
      ),
      fact('Sessions', `${count(status.sessions)} bound to a worker`),
      fact('Responses', `${count(status.responses)} whose worker is known`),
    ],
    fact(
      'Tokens made here',
      others.tokenizers?.length ? others.tokenizers.map((t) => `${t.model}: ${t.state}`).join(', ') : 'of no model: engines are asked',
    ),
    status.certificates?.map((c) => fact(`Certificate of the ${c.port} port`, ending(c, status.recent.at_ms).text)),
    fact('Other routers', others.peers?.length ? others.peers.join(', ') : 'none'),
    status.remote_index && fact('Index elsewhere', status.remote_index),
    others.options && said(others.options),
  );
}

export const take = () => [
  'Save ',
  files.map((name) => h('button', {type: 'button', class: 'quiet', 'data-do': 'save', 'data-file': name}, name)),
];
