// SPDX-License-Identifier: Apache-2.0
// The head of the page: the fleet in a sentence, and what to look at.
import {h, icon} from './dom.js';
import {count, findings, headline, span} from './words.js';

const MODES = {
  kv: 'by cache and load',
  'round-robin': 'in turn',
  random: 'at random',
  'least-loaded': 'by load alone',
  direct: 'where requests say',
};

export function head(status) {
  return [
    h('h2', {id: 'headline'}, headline(status)),
    h(
      'p',
      {class: 'sub'},
      `Requests go ${MODES[status.mode] ?? status.mode}. Up ${span(status.uptime_ms / 1000)}, ${count(status.requests)} requests answered.`,
    ),
  ];
}

export function look(status) {
  const all = findings(status);
  if (!all.length) return h('p', {class: 'calm'}, icon('good'), 'Nothing needs attention.');
  return h(
    'ul',
    {class: 'findings', 'aria-label': 'What to look at'},
    all.map((f) =>
      h(
        'li',
        {'data-tone': f.tone, 'data-key': f.title},
        icon(f.icon),
        h(
          'div',
          null,
          h('h3', null, f.worker == null ? f.title : h('a', {href: `#worker-${f.worker}`}, f.title)),
          f.text && h('p', null, f.text),
        ),
      ),
    ),
  );
}
