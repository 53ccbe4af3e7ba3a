#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records what Jinja2 makes of the constructs of chat templates, in the environment that transformers compiles them in: jinja.json, which
tests/all/matrix.rs renders again. Needs a Python with jinja2 and transformers:

    /path/to/python tokenizer/tests/vectors/record.py

A case is a template and its text, or null where there is none. One construct a template, so that what is refused here hides nothing else.
"""
import copy
import json
import os
import random

import jinja2
import transformers
from transformers.utils.chat_template_utils import _compile_jinja_template

VARIABLES = {
    "messages": [
        {"role": "system", "content": " Be brief. \x1f", "name": None},
        {"role": "user", "content": "Hi <b> & \"you\" 'there' é 😀\n"},
        {"role": "assistant", "content": "<think>\nwhy\n</think>\n\nso", "n": None, "one": 1.0, "i": 7, "t": True,
         "d": {"b": 1, "a": [1, "x", None, True, 2.5], "C": {}}, "e": {}, "l": [], "s": "a,b,,c", "neg": -7, "zero": 0, "key": "items", "f": False, "half": 2.5},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "description": "d é", "parameters": {"type": "object", "properties": {
        "b": {"type": "string", "items": {"type": "x"}}, "A": {"type": ["a", "b"]}}, "required": ["b"]}}}],
    "z": None, "count": 3, "words": ["beta", "Alpha", "alpha", "Gamma"], "numbers": [3, 1, 2, 2], "lines": "a\nb\n\n  c\n",
    "pairs": [["x", 1], ["y", 2]], "unprintable": ["\x00\x7f\xad\u200b\u3000\ufeff", {"\u2028": ["'", "\"", None, True, 1.0]}], "people": [{"n": "B", "a": 2, "in": {"k": 1}}, {"n": "a", "a": 1, "in": {"k": 2}}, {"n": "c", "in": {}}],
}

# Floats that Python prints with an exponent: a question that has one is refused where a template has `~`. For templates that name it.
ODD = {"big": 1e16, "tiny": 1e-5}

VALUES = ["z", "none", "true", "false", "nowhere", "0", "1", "-1", "1.0", "0.5", "1e16", "1e15", "123456789012345.6", "1e-5", "0.0001", "-0.0", "1e300", "''", "'x'",
          "'é😀'", "[]", "[1, 'a', none, true, 1.5]", "{}", "{'k': [1, {'q': none}]}", "(1, 2)", "(1,)", "()", "[(1, 2)]", "odd.big", "odd.tiny",
          "messages[2].d", "count", "\"it's\"", "['it\\'s', '\"', '\"\\'', '\\\\', '\\n\\t\\r', '\\x00\\x1b\\x7f\\xad\\u200b\\u2028\\ufeff']", "['é', '😀', '\\u0378', '\\ue000']"]
FILTERED = ["string", "tojson", "length", "count", "list", "first", "last", "int", "float", "abs", "upper", "lower", "title", "capitalize", "trim", "reverse|list",
            "join(',')", "default('D')", "default('D', true)", "d('D')", "items|list", "dictsort", "unique|list", "sum", "min", "max", "round", "select|list",
            "reject|list", "map('string')|list", "batch(2)|list", "indent", "replace('a', 'b')", "safe"]
TESTED = ["defined", "undefined", "none", "string", "mapping", "sequence", "iterable", "number", "integer", "float", "boolean", "true", "false", "callable",
          "odd", "even", "eq 1", "equalto 'x'", "ne 1", "in [1, 'x', none]", "lt 1", "gt 0", "le 1", "ge 1", "divisibleby 2", "== 1", "!= 1"]
COMPARED = ["==", "!=", "<", ">", "<=", ">=", "in", "not in", "and", "or", "+", "-", "*", "/", "//", "%", "**", "~"]
OPERANDS = ["none", "true", "0", "2", "-7", "1.5", "'a'", "''", "'ab'", "[1]", "['a']", "{'a': 1}", "nowhere", "(1, 2)"]

STRINGS = r"""
'  a \x1c'.strip()  'xxaxx'.strip('x')  'abcab'.strip('ab')  'xa'.lstrip('x')  '  a '.rstrip()  'a\u3000\x85'.rstrip()  '  '.strip()  'xaxbx'|trim('x')  ' x '|trim  '\x1fa'.lstrip()
'a'.strip(none)  'a'.strip('')  'a'.strip(1)  '\u200ba\u200b'.strip()  '\ufeffa'.strip()  'a\n'.strip('\n')  'aéa'.strip('a')
'a  b\tc\u3000d'.split()  'a,b,,c'.split(',')  'a,b,c'.split(',', 1)  'a,b,c'.rsplit(',', 1)  ''.split()  ''.split(',')  ' a b '.split(' ')  'a b c'.split(none, 1)  'abc'.split('')  'a b'.rsplit()
'a,b'.split(',', 0)  'a,b'.split(',', -1)  'a,b,c'.split(',', maxsplit=1)  'a,b'.split(sep=',')  ' a  b '.split(none)  'a b c'.rsplit(none, 1)  'a--b--c'.rsplit('--')  'abc'.split('b')  'aXbXc'.rsplit('X', 5)
'<a></think>b'.split('</think>')[-1]  'abc'.split('</think>')[-1].lstrip('\n')  'a</t>b'.split('</t>')|last  'a</t>b'.split('</t>')|first
'abc'.startswith('a')  'abc'.startswith(('x', 'a'))  'abc'.startswith('')  'abc'.startswith('b', 1)  'abc'.endswith('c')  'abc'.endswith(('x', 'c'))  'abc'.endswith('b', 0, 2)  'abc'.startswith(1)  'abc'.startswith(['a'])
'abcb'.find('b')  'abcb'.find('z')  'é😀c'.find('c')  'abcb'.find('b', 2)  'abcb'.rfind('b')  'é😀cc'.rfind('c')  'abc'.find('')  'abc'.rfind('')  'abcb'.count('b')  'aaaa'.count('aa')  'abc'.count('')
'abc'.index('c')  'é😀c'.index('c')  'abc'.index('z')  'abcb'.rindex('b')  ['x', 'y'].index('y')  ['x'].index('q')  [1, 1, true].count(1)  (1, 2).index(2)  (1, 1).count(1)
'abc'.replace('b', 'x')  'aaa'.replace('a', 'b', 1)  'abc'.replace('', '-')  'aaa'.replace('a', 'b', 0)  'aaa'.replace('a', 'b', -1)  'aaa'|replace('a', 'b', 2)  'abc'|replace('', '-')  'aaa'|replace('a', 'b', -1)  'abc'.replace('a')
'ß'.upper()  'ŉ'.upper()  'ﬁ'.upper()  'İ'.lower()  'ΑΣ'.lower()  'ΑΣ Α'.lower()  'Ω'.lower()  'ǆ'.title()  'ǆ'|title  'hELLO wORLD'.capitalize()  'ǆx'.capitalize()  'ﬁx'.capitalize()  'ßx'.capitalize()  'ßx'|capitalize  'ǆx'|capitalize  'ÉCOLE'.capitalize()
'it\'s a-b c_d 3e x'.title()  'it\'s a-b c_d 3e x'|title  "o'neil ß"|title  'ΑΣ ΑΣ'.title()  'ﬁx'.title()  'ﬁx'|title  'ªa ⅷ ⓐb'.title()  'a\u0301b'.title()  'x²y'.title()  'HELLO (world)'|title  'a\u200bb'|title  '\u01c5x'.title()
'abc'.removeprefix('a')  'abc'.removesuffix('c')  'abc'.removeprefix('')  'abc'.removesuffix('')  'abc'.removeprefix('x')  ','.join(['a', 'b'])  ','.join([1, 2])  ','.join('abc')  ','.join([])  ','.join({'a': 1})  ''.join(['a', none])  ','.join(words|map('upper'))
'a\nb\r\nc'.splitlines()  'a\n\nb\n'.splitlines()  'a\x0bb\x0cc\x1cd\x85e\u2028f'.splitlines()  ''.splitlines()  'a\rb'.splitlines()  'a\nb'.splitlines(true)  '\n'.splitlines()
'a{}b{x}'.format(1, x=2)  '{0}{1}{0}'.format('a', 'b')  '{}'.format(none)  '{}'.format(true)  '{}'.format(1.0)  '{}'.format([1, 'a'])  '{{}}'.format()  '{}'.format()  '{:>5}|{:<5}|{:^5}'.format('a', 'b', 'c')  '{:.2f}'.format(1.005)  '{:,}'.format(1234567)  '{:05d}'.format(42)  '{!r}'.format('a')  '{:x}'.format(255)  '{a.b}'.format(a={'b': 1})  '{a[b]}'.format(a={'b': 1})  '{:e}'.format(12345.678)  '{:%}'.format(0.25)  '{:+d}'.format(5)  '{:g}'.format(0.00001)  '{:10}|'.format(3)  '{:10}|'.format('é')  '{:.1f}'.format(0.25)  '{:.0f}'.format(2.5)  '{:d}'.format(true)  '{:s}'.format(1)  '{:*^7}'.format('a')  '{:b}'.format(5)  '{:#x}'.format(255)  '{:_}'.format(12345)
'%s-%d' % ('a', 3)  '%s' % 1  '%s' % [1]  '%05.1f|%x|%r' % (2.5, 255, 'q')  '%s-%d'|format('a', 3)  '%%' % ()  'abc' % none
'abc'.isdigit()  'a'.isalpha()  'A'.isupper()  ' '.isspace()  'abc'.center(7)  'a'.ljust(3)  'a'.zfill(3)  'a b'.partition(' ')  'x'.encode()  'aB'.swapcase()  'ß'.casefold()  'a\tb'.expandtabs()
'abc'[1:]  'abc'[:-1]  'abc'[::-1]  'abc'[::2]  'abc'[5:]  'abc'[-1]  'abc'[5]  'é😀x'[1]  'é😀x'[1:]  'abc'[-2:]  'abcdef'[4:1:-1]  'abcdef'[-1:-4:-1]  'abcdef'[:2:-1]  'abcdef'[3::-1]  'abcdef'[-2::-1]  'abcdef'[10::-2]  'abc'[none:2]  'abc'[1:none]  'abc'[0:0]  'abc'['x']  'abc'[1.0]  'abc'[true]  'abc'[::0]  'abc'.0  'abc'[-5:2]  'abc'[2:1]
[1, 2, 3][::2]  [1, 2, 3][-1]  [1, 2, 3][1:]  [1, 2, 3][::-1]  [1, 2, 3][5:]  [][0]  [1, 2, 3][-5]  [1, 2, 3]['0']  (1, 2, 3)[1:]  (1, 2, 3)[::-1]  (1, 2, 3)[0]  messages[1:][0].role  messages[::-1][0].role  messages[10]  messages['0']  messages.0.role  messages[-1].content[0].text  [1, 2, 3, 4, 5][-2:0:-1]  [1, 2][true]
'\n\t\\ \' " \u00e9 \x41'  '\101'  '\N{BULLET}'  '\q'  '\/'  '\a\b\f\v'  '\0'  '\U0001F600'  '\ud83d\ude00'  '\u{41}'  "a" "b"  'a' 'b' ~ 'c'  'a" b'  "a' b"
'a' * 3  3 * 'a'  [1] * 2  'ab' * 0  'ab' * -1  'ab' * 1.0  'a' + 'b'  [1] + [2]  (1, 2) + (3,)  {'a': 1} + {}  'a' + 1  'a' + none  'a' + nowhere  1 + '1'  1 + nowhere  nowhere + 'a'  none + 'a'
"""
EXPRESSIONS = STRINGS + r"""
1/2  4/2  7//2  -7//2  7 % 3  -7 % 3  7 % -3  -7 // -2  7.5 // 2  -7.5 // 2  -7.5 % 2  7 % 2.5  2**10  2**-1  2**0.5  (-2)**2  -2**2  0**0  1/0  1//0  1%0  1.0/0  0.1 + 0.2  1/3  1e308 * 10  10**20  2**64  2**63  9223372036854775807 + 1  9223372036854775807  100000000000000000000  10000000000000 * 10000000000000  -9223372036854775807 - 1
1_000  1e3  1E3  1.5e-3  0x1f  0b11  0o17  .5  1.  007  1_000.5  12e-2  0.1e1
true + 1  true * 3  true / 2  -true  +true  not none  not ''  not []  not 0.0  -count  +count  - -count  -'a'  +'a'  -none  true == 1  true is eq 1  1 == 1.0  'a' == 'a'  [1] == [1.0]  [1] == (1,)  {'a': 1} == {'a': 1.0}  {'a': 1, 'b': 2} == {'b': 2, 'a': 1}  none == false  nowhere == none  nowhere == nowhere2  '' == none  0 == false  nowhere == ''
1 < 2 < 3  1 < 3 < 2  1 == 1 == 1  3 > 2 > 1  'a' < 'b'  'a' < 'B'  'é' < 'z'  [1] < [2]  [1, 2] < [1]  (1, 2) < (1, 3)  1 < 1.5  true < 2  1 < 'a'  none < 1  none < none  nowhere < 1  {} < {}  1 != 2 != 1  'a' in 'abc' in ['abc']
'a' in 'abc'  '' in 'abc'  1 in 'abc'  'role' in messages[0]  'x' not in {}  1 in [1.0]  true in [1]  none in [none]  1 in none  'x' in nowhere  'x' not in nowhere  'k' in {'k': none}  (1, 2) in [(1, 2)]  [1] in [[1]]  'b' in ('a', 'b')  {} in [{}]  none in 'abc'  1 in {1: 2}  'a' in 1
1 if z  1 if not z else 2  z or 'd'  z and 'd'  '' or [] or 'x'  nowhere or 'u'  0 or nowhere  1 and 2  0 and 2  'a' if messages[2].e else 'b'  (1 if z) or 'none'  (1 if z) is defined  not z and not nowhere  1 or 1/0  none or none  (z or none) is none  'a' if nowhere else 'b'  'a' if 'false' else 'b'  'a' if 0.0 else 'b'  'a' if (0,) else 'b'
nowhere.foo  nowhere['foo']  nowhere.foo.bar  messages[0].nope  messages[0]['nope']  messages[0].nope.foo  messages[0].nope is defined  messages[0].nope.foo is defined  messages[0].name.first  messages[0].name is defined  messages[0].name is none  none.foo  (none).foo is defined  1.foo  count.foo  count.foo is defined  'a'.foo  'a'.foo is defined  [].foo  nowhere()  nowhere.foo()  messages[0].nope()  count()  messages.foo is defined  messages.role
messages[0].items  messages[0].items is defined  messages[0].get  messages[0].keys is defined  messages[0]['items']  tools[0].function.parameters.properties.b.items  tools[0].function.parameters.properties.b['items']  tools[0].function.parameters.properties.b['items'].type  messages[0].copy()  messages[0].values  messages[0].update  'a'.upper  'a'.upper is defined  [].append  'a'.count is callable  words.index is defined  'a'.title is defined  words.count  words.sort
messages[0].get('role')  messages[0].get('x')  messages[0].get('x', 'd')  messages[0].get('name', 'd')  messages[0].get('x', default='d')  messages[0].get()  messages[0].keys()|list  messages[0].keys()  messages[0].values()|list  messages[0].values()  messages[0].items()  messages[0].items()|list  messages[2].d.items()|length  messages[2].d.keys()|length  messages[2].d.keys()|first  messages[2].d.keys()|join(',')  messages[2].d.items()|first  messages[2].d.items() is iterable  messages[2].d.keys() is sequence  messages[2].d.items() is sequence  messages[2].d.items() is mapping  'b' in messages[2].d.keys()  1 in messages[2].d.values()  messages[2].d.keys()|list|last  messages[2].d.items()|tojson  messages[2].d.values()|tojson  messages[2].d.keys()|tojson  messages[2].d.items()|list|tojson  messages[2].d.items()[0]  messages[2].d.keys()[0]
{'b': 1, 'A': 2, 'a': 3}|dictsort  {'b': 1, 'A': 2, 'a': 3}|dictsort(true)  {'b': 1, 'A': 2, 'a': 3}|dictsort(by='value')  {'b': 1, 'A': 2}|dictsort(reverse=true)  {'b': 1, 'A': 2, 'a': 3}|dictsort(case_sensitive=true)  {'b': 'x', 'a': 'X', 'c': 'W'}|dictsort(false, 'value')  {'b': 1}|items|list  {'b': 1}|list  {'b': 1}|length  {2: 1, 1: 2}|dictsort  {'a': none, 'b': 1}|dictsort(by='value')
{1: 2}  {1: 2}|tojson  {none: 1}|tojson  {true: 1}|tojson  {1.5: 1}|tojson  {'a': 1}['a']  {'a': 1}.a  {1: 'x'}[1]  {1: 'x'}[1.0]  {true: 'x'}[1]  {'a': 1, 'a': 2}  {'a': 1}|string  {'a': (1, 2)}|tojson  {(1, 2): 3}  {[1]: 2}  dict(a=1)  dict(a=1)|tojson  dict({'a': 1}, b=2)  dict([('a', 1)])  dict()  dict({'a': 1}).a  {'a': 1, **{'b': 2}}  [*[1, 2], 3]
tools|tojson  tools|tojson(indent=4)  tools|tojson(indent=2, sort_keys=true)  tools|tojson(indent=0)  tools|tojson(indent='--')  tools|tojson(indent=none)  tools|tojson(2)  tools|tojson(indent=true)  messages[2]|tojson  messages[2]|tojson(separators=(',', ':'))  messages[2]|tojson(separators=(',', ':'), indent=1)  messages[2]|tojson(indent=-1)  messages[1].content|tojson(ensure_ascii=true)  messages[1].content|tojson(ensure_ascii=false)  messages[1].content|tojson(true)  '😀é\x7f\x80'|tojson(ensure_ascii=true)  '\u2028\x7f\u200b</script>&\''|tojson  '\u0000\u001f\b\f\n\r\t"\\/'|tojson  [1.0, 1e16, 1e22, 0.00001, 1e-7, -0.0, 123456789.123, 5e-324, 1.7976931348623157e308]|tojson  nowhere|tojson  [nowhere]|tojson  {'b': 1, 'a': {'d': 1, 'c': 2}}|tojson(sort_keys=true)  {'B': 1, 'a': 2, 'é': 3, '😀': 4, '\uffff': 5}|tojson(sort_keys=true)  []|tojson(indent=2)  {}|tojson(indent=2)  [[], {}]|tojson(indent=2)  {'a': []}|tojson(indent=2)  (1, 2)|tojson  (1,)|tojson(indent=1)  range(3)|tojson  words|map('upper')|tojson  'x'|tojson|tojson  ('x'|tojson) ~ 'y'  tools|tojson|length  tools|tojson|upper  (tools|tojson)[:9]  tools|tojson(separators=[',', ':'])  tools|tojson(foo=1)  true|tojson  none|tojson  1|tojson  2.5|tojson  raise_exception|tojson  messages|tojson|trim
words|sort  words|join(', ')  words|join  numbers|join('-')  words|join(',', attribute='x')  people|join(',', attribute='n')  [1, none, true, 1.5, 'a', [1]]|join('|')  'abc'|join(',')  {'a': 1, 'b': 2}|join(',')  []|join(',')  nowhere|join(',')  none|join(',')  words|join(none)  words|join(1)  [nowhere, 1]|join(',')  words|map('upper')|join(' ')  (1, 2)|join(',')  '<a>'|join('&')
words|first  words|last  ''|first  []|first  []|last  'abc'|first  'abc'|last  {'a': 1}|first  {'a': 1, 'b': 2}|last  nowhere|first  none|first  []|first is defined  (1, 2)|last  range(3)|last  words|map('upper')|first  words|map('upper')|last  words|select('in', ['beta'])|first
words|length  'é😀'|length  'e\u0301'|length  {}|length  nowhere|length  none|length  1|length  (1, 2)|length  range(3)|length  words|map('upper')|length  words|select('string')|list|length  words|count  'abc'|count  1|count
words|unique|list  words|unique(case_sensitive=true)|list  words|unique(true)|list  people|unique(attribute='n')|list|length  [1, 1.0, true, 2]|unique|list  numbers|unique|list  words|unique|join(',')  ['a', 'A', 'b']|unique|list
numbers|sum  numbers|sum(start=10)  people[:2]|sum(attribute='a')  people|sum(attribute='a')  [0.1, 0.2]|sum  []|sum  ['a', 'b']|sum  [[1], [2]]|sum(start=[])  numbers|min  numbers|max  words|min  words|max  words|max(case_sensitive=true)  words|min(true)  people|max(attribute='n')  []|min  []|max  people[:2]|min(attribute='a')  ['b', 'A']|min  [1, 1.0]|max  [1, 'a']|max  (3, 4)|max  'bca'|max
numbers|reverse|list  'abc'|reverse  'é😀'|reverse  (1, 2)|reverse|list  {'a': 1, 'b': 2}|reverse|list  none|reverse  numbers|reverse  range(3)|reverse|list  numbers|reverse|join(',')  1|reverse
[1, 2, 3, 4, 5]|batch(2)|list  [1, 2, 3]|batch(2, 'x')|list  [1, 2, 3]|batch(2, none)|list  []|batch(2)|list  'abc'|batch(2)|list  [1, 2]|batch(2, 'x')|list  [1]|batch(3, 0)|list  [1, 2]|batch(0)|list  [1]|batch(fill_with='x', linecount=2)|list
lines|indent  lines|indent(2)  lines|indent(2, true)  lines|indent(2, first=true)  lines|indent(2, blank=true)  lines|indent(2, true, true)  lines|indent(width='>> ')  lines|indent(width=3)  ''|indent(2, true)  'a'|indent(2, true)  'a\n'|indent(2)  'a\r\nb'|indent(2)  '\na'|indent(2)  '\na'|indent(2, true)  'a\x85b\u2028c\x0bd'|indent(2)  'a\n\n'|indent(1, false, true)  'a\n \nb'|indent(2)  none|indent(2)  1|indent  lines|indent(0)  lines|indent('')
'3'|int  'x'|int  'x'|int(5)  '3.7'|int  ' 3 '|int  '-3'|int  '+3'|int  '1_000'|int  '0x1f'|int  '0x1f'|int(0, 16)  '1f'|int(base=16)  '1f'|int(0, 16)  '٣'|int  '1e3'|int  'inf'|int  3.7|int  -3.7|int  3.0|int  true|int  none|int  none|int(7)  nowhere|int  []|int  ''|int  '12345678901234567890'|int  1e16|int  '-0'|int  '3.'|int  '.5'|int
'3.5'|float  'x'|float  'x'|float(1.5)  ' 1.5 '|float  '1e3'|float  'inf'|float  'nan'|float  '-Infinity'|float  2|float  true|float  none|float  nowhere|float  '1_0.5'|float  ''|float  '٣.٥'|float  'x'|float(none)  '1e400'|float  '0x10'|float  '1.'|float  '+1.5'|float
3.567|round(2)  2.5|round  3.5|round  -2.5|round  0.5|round  1.5|round  2.675|round(2)  1234.5|round(-2)  3|round  3.14159|round(3, 'ceil')  3.14159|round(3, 'floor')  3.2|round(method='ceil')  3.7|round(0, 'floor')  true|round  '3.5'|round  1e16|round  2.345|round(precision=1)  1.25|round(1)  0.15|round(1)  5|round(-1)  15|round(-1)
-3|abs  (-3)|abs  -3.5|abs  (-3.5)|abs  true|abs  '3'|abs  0|abs  (-0.0)|abs
messages|map(attribute='role')|list  messages|map(attribute='nope')|list  messages|map(attribute='nope', default='D')|list  messages|map(attribute='d.b')|list  people|map(attribute='in.k')|list  people|map(attribute='in.k', default=0)|list  words|map('upper')|list  words|map('replace', 'a', 'X')|list  words|map('length')|list  pairs|map('first')|list  pairs|map(attribute=0)|list  pairs|map(attribute='1')|list  words|map('nofilter')|list  words|map|list  words|map('join', '-')|list  numbers|map('string')|join('+')  ['a', none]|map('default', 'x')|list  nowhere|map('upper')|list  words|map('tojson')|join(',')  words|map('trim')|list  words|map('title')|list  numbers|map('float')|list  numbers|map('int')|sum  words|map(attribute='upper')|list  people|map(attribute='n')|map('upper')|join(' ')  words|map('indent', 2, true)|list  words|map('groupby')|list  people|map('tojson', sort_keys=true)|list
messages|selectattr('role', 'equalto', 'user')|list|length  messages|selectattr('role', 'eq', 'user')|map(attribute='role')|list  messages|selectattr('role', '==', 'user')|list|length  messages|rejectattr('role', 'eq', 'user')|map(attribute='role')|list  messages|selectattr('n', 'defined')|list|length  messages|selectattr('name', 'none')|list|length  messages|selectattr('name')|list|length  messages|rejectattr('name')|list|length  messages|selectattr('role', 'in', ['user', 'system'])|map(attribute='role')|list  people|selectattr('in.k', 'eq', 1)|map(attribute='n')|list  people|selectattr('a', 'gt', 1)|map(attribute='n')|list  people|selectattr('a')|list|length  people|rejectattr('a')|map(attribute='n')|list  people|selectattr('a', 'undefined')|map(attribute='n')|list  messages|selectattr('content', 'string')|list|length  messages|selectattr|list  messages|selectattr('role', 'nope')|list  pairs|selectattr(1, 'gt', 1)|list  pairs|selectattr('1', 'gt', 1)|list  messages|selectattr('role', 'ne', 'user')|first|tojson  messages|selectattr('role', 'sameas', 'user')|list|length  people|selectattr('n', 'upper')|list|length  (messages|selectattr('role', 'eq', 'nobody')|list)[0]  messages|selectattr('role', 'eq', 'nobody')|first  messages|selectattr('role', 'eq', 'user')|last|tojson
[1, 0, none, 2, '', 'a']|select|list  [1, 2, 3]|select('odd')|list  [1, 2, 3]|reject('equalto', 2)|list  [1, 0]|reject|list  words|select('in', ['beta'])|list  numbers|select('gt', 1)|list  numbers|select('divisibleby', 2)|list  words|select('string')|join(',')  numbers|select('nope')|list  numbers|select('==', 2)|list  numbers|select('!=', 2)|list  messages[2].t > messages[2].zero  messages[0][messages[2].key]  numbers|select  numbers|reject('lt', 2)|list  [1, 'a', none]|select('none')|list  [[1], {}, 'a']|select('mapping')|list  nowhere|select|list  numbers|select('gt', 1)|first  [1, 'a']|select('gt', 0)|list
nowhere|default('d')  z|default('d')  z|default('d', true)  ''|default('d', true)  nowhere|d('e')  nowhere|default  nowhere.foo|default('d')  messages[0].nope|default('d')  z|default(default_value='x', boolean=true)  0|default(1)  0|default(1, true)  nowhere|default(none)  nowhere|default(nowhere2)  messages[0].nope.foo|default('x')  nowhere|default([])|length
'<a>'|e  '<a>'|escape  '<a>'|safe  ('<a>'|safe) + '<b>'  '<a>&'  '<a>' ~ '&'  'ab'|list  words|list  {'b': 1, 'a': 2}|list  1|list  none|list  nowhere|list  'é😀'|list  (1, 2)|list  range(3)|list  range(3)  range(5, 0, -2)|list  range(0)|list  range(2, 5)|list  range(1, 10, 0)|list  range('a')|list  range(100001)|length  range(3)[1]  range(3) is iterable  range(3) is sequence  range(1.5)|list  3 in range(5)  range(3)|string  range(3) == range(3)  range(0)|first  range(3)|sum
namespace(a=1)  namespace(a=1).a  namespace().b  namespace({'a': 1}).a  namespace(a=1) is mapping  namespace(a=1)['a']  namespace(a=1) is defined  namespace is defined  raise_exception is defined  strftime_now is defined  range is defined  dict is defined  tojson is defined  lipsum is defined  cycler is defined  joiner is defined  self is defined  loop is defined  caller is defined  varargs is defined  bos_token is defined  documents is defined  documents is none  tools is defined  add_generation_prompt  add_generation_prompt is defined  eos_token is defined  bos_token + 'x'  raise_exception is callable  words is callable  none is callable  namespace is callable  namespace is none  raise_exception  range
strftime_now('x')  strftime_now('%%')  strftime_now('')  strftime_now('%Y')|length  strftime_now()  strftime_now('%d %B %Y')|length > 8  raise_exception('no')  raise_exception()  raise_exception(1)  lipsum()  cycler('a', 'b')  joiner(', ')  nofunction(1)
4 is divisibleby 2  4 is divisibleby(3)  4 is not divisibleby 3  1.5 is divisibleby 0.5  4 is divisibleby 0  'A' is upper  'a' is lower  1 is sameas 1  'x' is filter  'defined' is test  'upper' is filter  x is not defined  'a' is in ['a']  'a' is in 'abc'  'a' is not in ['b']  1 is odd  2.0 is even  -1 is odd  (-1) is odd  'a' is odd  'a' is escaped  messages is sequence  messages[0] is mapping  1 is lessthan 2  2 is greaterthan 1  1 is < 2  1 is equalto 1.0  'abc' is startingwith 'a'  none is not none  1 is ne 2  [] is eq []  'a' is lt 'b'  'a' is gt 1  1 is number and 2 is number  nowhere is number  true is number  true is integer  1.0 is integer  1.0 is float  true is float
'ab'|replace('a', '<')  1|replace(1, 2)  none|replace('N', 'x')  123|replace('2', 'x')  'a'|upper|lower  (1.0)|upper  none|upper  true|lower  [1]|upper  nowhere|upper  1|title  none|title  1|capitalize  nowhere|trim  none|trim  1|trim  [1]|trim  messages[0].content|trim  ' a b '|trim|length  'x'|trim('xy')  'ax'|trim(none)  nowhere|title  nowhere|replace('a', 'b')  'a'|replace('a', 1)  'a'|replace('a', none)
messages[2].s.split(',')|select|list  messages[2].content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n')  messages[1]['role'] == 'user' == messages[3].role  (messages[0].content ~ '')|trim|length  (messages|first).role  messages|length - 1  messages|length > 2 and messages[0].role == 'system'  (messages|last).content|length  messages[0]['content'][1:]  messages[0].role.upper()  messages[-1]['content'][-1]['text']  messages|string|length  messages[2].d.a|tojson  messages[2].d.a[-1]  messages[2].neg // 2  messages[2].neg % 4  messages[2].half|round  messages[2].i ~ messages[2].t ~ messages[2].n  odd.big ~ ''  odd.tiny ~ ''  1e16 ~ ''  1e-5 ~ ''  1.0 ~ ''  -0.0 ~ ''  [1, 'a'] ~ ''  {'k': none} ~ ''  nowhere ~ 'a'  none ~ true  (1, 2) ~ ''  1 ~ 2  'a' ~ [1.0, 1e16]  [odd.big] ~ ''
unprintable ~ ''  unprintable  unprintable|string  unprintable|join  unprintable|tojson  unprintable|upper  words ~ ''  people ~ ''  messages ~ ''  tools ~ ''  words + [1] ~ ''  range(3) ~ ''  [range(3), true]  {'q': range(3)}  z[:-1]  z[1:]|length  z[1:] is defined  ''.split()  messages[2].l  messages[1:]|tojson  messages[1:] ~ ''  messages[1:]  words[1:]|list ~ 'a'  [messages[2].d] + words ~ ''  [][::-1]|list  messages[2].l[::-1]|list  (z or [])[::-1]|list  messages[::-1]|map(attribute='role')|list  messages[1:]|length  messages[1:][0].role  words[1:]|join  range(500)|list ~ ''  [[[[[[[[[[1, [2, {'a': {'b': {'c': [3]}}}]]]]]]]]]]] ~ ''  [none, true, 'it\'s', '\n'] ~ ''  {'a': nowhere} ~ ''  [nowhere] ~ ''  ['\x00\x7f\xad\u200b'] ~ ''  "'" ~ ["'"] ~ ['"']  messages[1] ~ ''  messages[1].content|string ~ 1  {1: 'a', none: 2, 'k': (1,)} ~ ''  true ~ false  1.5 ~ 100.0 ~ 0.1
tools[0].function.parameters.properties.items()|length  {'items': 1}.items()|list  {'keys': 1, 'get': 2}.get('get')  {'items': 1}['items']  {'items': [1]}.items  words['upper']  'ab'['upper'] is defined  numbers|map('float')|join('~')  messages[1]|string  messages[0].content|replace('Be', 'be')|trim  words|map(attribute='0')|list  1 / 30000 ~ ''  [1, 2][4 / 4]  ['a', 'b'][messages[2].one]  ('a' ~ 'b')|upper  'a' ~ 'b' * 2  1 + 2 ~ 3  'a' ~ 1 + 2  not 1 ~ 2  -1 ~ 2  2 * 3 ~ 4  'a' in 'ab' ~ 'c'  1 == 1 ~ ''  1 if true else 2 ~ 3  'x' ~ (1 if false)  'a'|upper ~ 'b'|upper  -'3'|int  -3|abs ~ ''  2 ** 3 ** 2  -2 ** 2  not true == false  not 1 in [1]  1 - 1 - 1  8 / 4 / 2  8 // 3 * 2  7 % 4 * 2  1 < 2 == true  1 < 2 and 2 < 3 or false  false and true or true  true or true and false  'a' + 'b' ~ 'c' + 'd'  1 is defined and 2 is odd  1 is odd or 2 is odd  not 2 is odd  2 is not odd  'a' if 1 is odd  1 + 1 is even  -1 is odd == true  'abc'|length > 2  'a'|upper == 'A'  'a' == 'A'|lower  [1, 2]|length + 1  3|string + 'x'  words[0][0]|upper  words[0].upper()[0]  (words|first).upper()  {'a': 'b'}.a.upper()  {'a': 'b'}['a'] ~ 'c'  words[-1:][0]  words[:1] + words[-1:]  words[1:][:1]
[1, 2].append(3)  [1, 2].pop()  words.sort()  {'a': 1}.update({'b': 2})  words.extend(['x'])  [1].insert(0, 2)  words.reverse()  {'a': 1}.pop('a')  {'a': 1}.setdefault('b', 2)  'a'.__class__  messages.__class__  messages[0].__len__()  ''.__doc__  words.__getitem__(0)  (1).bit_length()  (1.5).is_integer()  true.real
"""

STATEMENTS = r"""
{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }};{% endfor %}
{% for m in messages %}{{ loop.previtem.role if loop.previtem is defined }}>{{ loop.nextitem.role if loop.nextitem }};{% endfor %}
{% for m in messages %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{% endfor %}
{% for m in messages %}{{ loop.cycle('a', 'b') }}{% endfor %}
{% for m in messages %}{{ loop.changed(m.role) }}{% endfor %}
{% for m in [1, 1, 2] %}{% if loop.changed(m) %}{{ m }}{% endif %}{% endfor %}
{% for m in messages %}{{ loop.depth }}{{ loop.depth0 }}{% endfor %}
{% for m in messages %}{{ loop.foo }}{% endfor %}
{% for m in messages %}{{ loop }}{% endfor %}
{% for x in [] %}a{% else %}empty{% endfor %}
{% for x in nowhere %}a{% else %}e{% endfor %}
{% for x in none %}a{% endfor %}
{% for x in 1 %}a{% endfor %}
{% for m in messages if m.role != 'user' %}{{ loop.index }}{{ m.role }}{{ loop.last }}{{ loop.length }}{% endfor %}
{% for m in messages if false %}a{% else %}none left{% endfor %}
{% for m in messages %}{% if m.role == 'user' %}{% continue %}{% endif %}{{ m.role }}{% endfor %}
{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}{{ m.role }}{% else %}never{% endfor %}
{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ loop.index }}{% endfor %}
{% for k, v in messages[2].d.items() %}{{ k }}={{ v }};{% endfor %}
{% for k, v in messages[2].d|items %}{{ k }}={{ v }};{% endfor %}
{% for k in messages[2].d %}{{ k }}{% endfor %}
{% for k, v in messages[2].d|dictsort %}{{ k }}={{ v }};{% endfor %}
{% for k, v in nowhere|items %}{{ k }}{% endfor %}
{% for c in 'aé😀' %}{{ c }}.{% endfor %}
{% for i in range(3) %}{{ i }}{% endfor %}
{% for a, b in pairs %}{{ a }}{{ b }}{% endfor %}
{% for (a, b) in pairs %}{{ a }}{{ b }}{% endfor %}
{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for a, b in [(1, 2, 3)] %}{{ a }}{% endfor %}
{% for a, b in ['xy'] %}{{ a }}{{ b }}{% endfor %}
{% for a, b in [1] %}{{ a }}{% endfor %}
{% for a in [1] %}{% for b in [1, 2] %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}
{% for a in [1, 2] %}{% set outer = loop %}{% for b in [1, 2] %}{{ outer.index }}{{ loop.index }} {% endfor %}{% endfor %}
{% for m in messages recursive %}{{ m.role }}{% endfor %}
{% for n in [[1, [2]], [3]] recursive %}{{ loop.depth }}{{ loop(n) if n is sequence and n is not string else n }}{% endfor %}
{% for x in [1, 2, 3] %}{{ x }}{% if not loop.last %}, {% endif %}{% endfor %}
{% for x in words|map('upper') %}{{ loop.index }}{{ loop.last }}{{ loop.length }}{{ x }}{% endfor %}
{% for m in messages[::-1] %}{{ loop.index }}{{ m.role }}{% endfor %}
{% set messages = messages[9:] %}{% for m in messages[::-1] %}{{ m.role }}{% endfor %}x
{% for x in numbers|reverse %}{{ x }}{% endfor %}
{% for x in words[1:] + ['q'] %}{{ x }}{% endfor %}
{% for x in (1, 2) %}{{ x }}{% endfor %}
{% for x in 1, 2 %}{{ x }}{% endfor %}
{% for x in [3, 1, 2]|sort %}{{ x }}{% endfor %}
{% for x in [1, 2] %}{% set x = x * 2 %}{{ x }}{% endfor %}{{ x }}
{% set x = 1 %}{% for i in [1, 2] %}{% set x = i %}{{ x }}{% endfor %}{{ x }}
{% set x = 1 %}{% if true %}{% set x = 5 %}{% endif %}{{ x }}
{% if false %}{% set x = 5 %}{% endif %}{{ x }}|{{ x is defined }}
{% set x = 1 %}{% for i in [1, 2] %}{% if x == 1 %}{% set x = 9 %}{% endif %}{{ x }}{% endfor %}{{ x }}
{% set x = 1 %}{% with x = 2 %}{{ x }}{% set x = 3 %}{{ x }}{% endwith %}{{ x }}
{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}
{% with a = 1 %}{% with b = a + 1 %}{{ b }}{% endwith %}{% endwith %}
{% with a = 1, b = a %}{{ b }}{% endwith %}
{% set a = 7 %}{% with a = 1, b = a %}{{ b }}{% endwith %}
{% set ns = namespace(a=1, b='') %}{% for i in [1, 2] %}{% set ns.a = ns.a + i %}{% set ns.b = ns.b ~ i %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns.c }}
{% set ns = namespace() %}{% set ns.q = [] %}{{ ns.q }}{{ ns.q is defined }}{{ ns.r is defined }}
{% set ns = namespace(found=false) %}{% for m in messages %}{% if m.role == 'user' and not ns.found %}{% set ns.found = true %}{{ loop.index }}{% endif %}{% endfor %}
{% set ns = namespace(l=[]) %}{% for i in [1, 2] %}{% set ns.l = ns.l + [i] %}{% endfor %}{{ ns.l }}{{ ns.l|length }}
{% set d = {'a': 1} %}{% set d.b = 2 %}{{ d }}
{% set nothing.a = 1 %}
{% set y %}block {{ count }}{% endset %}{{ y }}|{{ y is string }}|{{ y|length }}
{% set y | upper %}abc{% endset %}{{ y }}
{% set y | replace('a', 'x') | trim %} abc {% endset %}{{ y }}|
{% set y %}<b>&{% endset %}{{ y }}{{ y|tojson }}{{ y + '<' }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}
{% set a, b = [1, 2] %}{{ a }}{{ b }}
{% set (a, b) = (1, 2) %}{{ a }}{{ b }}
{% set a = 1, 2 %}{{ a }}
{% set l = [] + unprintable %}{{ 'a' ~ l }}
{% set a, b = 1 %}{{ a }}
{% set l = [1] %}{% set _ = l.append(2) %}{{ l }}
{% set messages = messages[1:] %}{{ messages|length }}
{% set messages = [] %}{{ messages }}
{% set loop_messages = messages %}{% for m in loop_messages %}{{ m.role[0] }}{% endfor %}
{% set true_ = true %}{{ true_ }}{{ True }}{{ False }}{{ None }}
{% set x = none %}{{ x is none }}{{ x is defined }}
{% set range = 3 %}{{ range }}
{% set x = x|default('q') %}{{ x }}
{% set count = count + 1 %}{{ count }}
{% set _ = 1 %}{{ _ }}
{% do 1 %}
{% macro m(a, b='x', c=none) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}{{ m(1, b=2) }}{{ m(1, 2, 3) }}
{% macro m(a) %}[{{ a }}]{% endmacro %}{{ m() }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}
{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(1) }}
{% macro m(a) %}{{ count }}{{ a }}{% endmacro %}{% set q = m(2) %}{{ q ~ 'x' }}{{ m(3).strip() }}{{ m(3)|length }}{{ m(1) is string }}
{% set g = 'outer' %}{% macro m() %}{{ g }}{% endmacro %}{{ m() }}
{% macro m() %}{{ g }}{% endmacro %}{% set g = 'late' %}{{ m() }}
{% macro m() %}{% set x = 1 %}{{ x }}{% endmacro %}{{ m() }}{{ x is defined }}
{% for i in [1] %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}
{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}in{% endcall %}
{% macro m() %}{{ caller(1, 2) }}{% endmacro %}{% call(a, b) m() %}{{ a }}{{ b }}{% endcall %}
{% macro m() %}{{ varargs }}{% endmacro %}{{ m(1, 2) }}
{% macro m() %}{{ kwargs }}{% endmacro %}{{ m(a=1) }}
{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}
{% macro m(x) %}{{ x|tojson }}{% endmacro %}{{ m({'a': m2 is defined}) }}
{% macro rec(n) %}{{ n }}{% if n > 0 %}{{ rec(n - 1) }}{% endif %}{% endmacro %}{{ rec(3) }}
{% macro m() %} a {% endmacro %}[{{ m() }}][{{ m()|trim }}]
{% macro m() -%} a {%- endmacro %}[{{ m() }}]
{% macro m(a) %}{{ a.b }}{% endmacro %}{{ m({'b': 1}) }}
{% macro m() %}x{% endmacro %}{{ m }}
{% macro m() %}x{% endmacro %}{{ m.name }}
{% macro m() %}x{% endmacro %}{{ m is defined }}{{ m is callable }}
{{ m() }}{% macro m() %}x{% endmacro %}
{% if true %}{% macro m() %}x{% endmacro %}{% endif %}{{ m() }}
{% macro m(a, *b) %}{% endmacro %}
{% macro m(messages) %}{{ messages }}{% endmacro %}{{ m('arg') }}
{% macro m(a, b=[]) %}{% for x in b %}{{ x }}{% endfor %}{{ a in b }}{{ a not in b }}{% if b and a %}y{% endif %}{{ 'n' if not b }}{% endmacro %}{{ m(1) }}{{ m(1, nowhere) }}{{ m(2, messages[0].nope) }}{{ m(1, [1]) }}
{% macro m(a, b=[]) %}{{ b }}{% endmacro %}{{ m(1, nowhere) }}
{% macro m(b='') %}{{ b is defined }}{% endmacro %}{{ m(nowhere) }}
{% macro m(a, b=true) %}{% if b %}{{ a }}{% endif %}{% if a %}{{ m(a - 1, b=b) }}{% endif %}{% endmacro %}{{ m(2) }}{{ m(1, false) }}
{% macro m(a, b=true) %}{% if b %}{{ a }}{% endif %}{% endmacro %}{{ m(2, nowhere) }}
{% macro m(a='d') %}{{ a }}{% endmacro %}{{ m(none) }}{{ m(nowhere) }}{{ m('') }}
{% filter upper %}abc{{ count }}{% endfilter %}
{% filter replace('a', 'b')|upper %}abc{% endfilter %}
{% raw %}{{ x }}{% endraw %}
{%- raw -%} {{ x }} {%- endraw -%} y
{% generation %}gen{% endgeneration %}
a {%- generation -%} b {%- endgeneration -%} c
{% generation %}{% set x = 1 %}{% endgeneration %}{{ x is defined }}
{% for m in messages %}{% generation %}{{ loop.index }}{{ m.role }}{% endgeneration %}{% endfor %}
{% set x = 1 %}{% generation %}{{ x }}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}
{% block a %}x{% endblock %}
{% include 'x' %}
{% extends 'x' %}
{% import 'x' as y %}
{% autoescape true %}{{ '<' }}{% endautoescape %}
{% trans %}x{% endtrans %}
{% debug %}
{% if messages %}x{% elif true %}y{% else %}z{% endif %}
{% if z %}x{% elif nowhere %}y{% else %}z{% endif %}
{% if messages[0].role == 'system' and messages[0].content is string %}a{% endif %}
{% if 'tool_calls' in messages[0] or messages[0].tool_calls is defined %}a{% else %}b{% endif %}
{% if not messages[0].tool_calls %}a{% endif %}
{% if messages[0]['tool_calls'] is not none %}a{% endif %}
{% if loop %}a{% endif %}
{% if %}a{% endif %}
{% else %}
{% endif %}
{{ 'a' 
{{ }}
{{ a b }}
{% unknown %}
{# c #}a{# {{ x }} #}b
{#- c -#}  a  {#- b #}
# not a comment
{{ '{{' }}{{ '}}' }}{{ "{%" }}
{{ '%}' }}
{{ {'a': {'b': 1}}['a']['b'] }}
{{ {'a': {'b': 1}}}}
{{- 'x' -}}   y   {{- 'z' }}
"""
# Of more than one line, or with line ends that matter.
WHOLE = [
    "{% if true %}{%- generation %}\na\n{%- endgeneration %}{% endif %}", "a {# c\nd #} b", "{{ 'x' -}}\n  y", "a\n  {%- if true %}\nb\n  {%- endif %}\nc", "   {% if true %}\n  line\n   {% endif %}\ntail",
    "   {% if true %}  x\n   {% endif %}  y", "{% if true %}\n\n a {# c #}\n{% endif %}\n\nb", "a {%+ if true +%}\nb\n{%- endif -%}\n\n c\n", "  {%+ if true %}x{% endif %}", "x  {% if true %}y{% endif %}  z",
    "{{ 'x' }}\n\n{{ 'x' }}\ny", "  {{ 'x' }}\n  {#- c #}\n x\n  {# d -#}\n y", "  {# whole line #}\nx", "{% for i in [1, 2] -%}\n  {{ i }}\n{%- endfor %}\nend", "{% for i in [1, 2] %}\n  {{ i }}\n{% endfor %}\nend",
    "\t{% if 1 %}\n\t\tx\n\t{% endif %}", "{% set x = 'l1\nl2' %}{{ x }}", "{{ 'a\nb' }}", "{{\n  'x'\n  ~ 'y'\n}}", "{%\n  if true\n%}x{%\n  endif\n%}", "{{ 'a\\\nb' }}",
    "a\r\n{% if 1 %}\r\nb\r\n{% endif %}\r\n", "a\rb\r{{ 'x' }}\r", "{{ 'x' }}\n\n", "\n{{ 'x' }}\n", "{{ 'x' }}\n", "a\n", "a\n\n", "\n", "", " ", "{% set x = 1 %}\n", "{% set x = 1 %}\n\n",
    "{# c #}\n", "{# c #}\nx", "{{ 'a\r\nb'|tojson }}", "{% raw %}\n{{ x }}\n{% endraw %}\nx", "a \n {%- if true -%} \n b \n {%- endif -%} \n c", "  {% if true %}\n  a\n  {% endif %}\n  b\n",
    "{% if true %}\n\n\na{% endif %}", "{% if true +%}\na{% endif %}", "a\n  {%+ if true %}b{% endif %}", "{%- if true %}\n  a\n{%- endif %}\n", "\ufeffa", "a\u2028{% if true %}\u2028b{% endif %}",
    "{% if true %}\x0bb{% endif %}", "a\xa0{%- if true -%}\xa0b{% endif %}", "a\x1c{%- if true -%}\x1cb{% endif %}", "a\u200b{%- if true -%}\u200bb{% endif %}", "a\x0c  {% if true %}b{% endif %}",
    "{{ 'x' }}\x0b\n", "\xa0\xa0{% if true %}a{% endif %}", "\u3000{% if true %}a{% endif %}", "a {{- '\n' -}} b", "{% for m in messages %}\n{{ m.role }}\n{% endfor %}\n\n",
    "{% for m in messages -%}\n{{ m.role }}\n{%- endfor %}", "{%- for m in messages %}\n    {%- if m.role == 'user' %}\n        {{- m.role }}\n    {%- endif %}\n{%- endfor %}\n", "{{ bos_token }}{% for m in messages %}\n {{ m.role }} {% endfor %}",
    "  {# a #}  {% if true %}b{% endif %}", "a  {# b #}\nc", "  {# a #}\n  {# b #}\nc", "{#- a -#}\n\n b", "{# a\nb #}\nc", "{% if true %}{# a #}\n{% endif %}b", "{{ x }}{# unclosed", "{{ '%}' }}{% if true %}{{ '{% generation %}' }}{% endif %}",
    "{% raw %}{% generation %}{% endraw %}", "{# {% generation %} #}a", "{{ '{% generation %}a{% endgeneration %}' }}", "{%- generation %}a{%- endgeneration %}", "{%generation%}a{%endgeneration%}", "{% generation  %}a{%  endgeneration %}",
    "{% generation x %}a{% endgeneration %}", "{% generation %}a", "a{% endgeneration %}", "{% endgeneration %}", "{%+ generation +%}\na{% endgeneration %}",
    "{{ messages|map(attribute='content')|list }}", "{{ messages }}", "{{ tools }}", "{{ words|tojson(indent=2) }}\n{{ numbers|tojson(indent=2) }}",
    "{%- set ns = namespace(is_first=false, system='') -%}{%- for m in messages %}{%- if m['role'] == 'system' %}{% set ns.system = m['content'] %}{%- endif %}{%- endfor %}{{ bos_token }}{{ ns.system }}",
    "{% set a = 'x' %}{% set b %}{{ a }}\n{% endset %}[{{ b }}]", "{% set b %}\n{% endset %}[{{ b }}]", "{% macro m() %}\na\n{% endmacro %}\n[{{ m() }}]\n", "{% call m() %}\nx\n{% endcall %}{% macro m() %}[{{ caller() }}]{% endmacro %}",
]

# Texts that `safe` gives, and where they may get to: what Jinja2 makes of a Markup there is not always what it makes of a text.
MARKED = ["('<b>&'|safe)", "(messages[1].content|safe)", "(pairs|tojson|safe)", "(z|safe)", "(nowhere|safe)", "(messages[1].content|trim|safe|lower)",
          "(count|safe if count else '<')", "(messages[2].e or '<%s>'|safe)", "([1, '<']|string|safe|default('x'))"]
PLACES = r"""
@  @ ~ '<&'  '<&' ~ @  @ ~ @  '<' ~ @|string ~ '>'  @ + '<&'  '<&' + @  @ + @  '<' + @ ~ '<'  @ * 2  @ % '<'  '%s<' % @  '%s' % [@]  @|format('<')
@|safe  @|string  @|string + '<'  @|trim  @|trim + '<'  @|trim('<')  @|trim ~ '<'  @|upper  @|upper ~ '<'  @|upper + '<'  @|lower  @|lower + '<'  @|title  @|title + '<'  @|capitalize  @|capitalize + '<'
@|length  @|count + 1  @|tojson  @|tojson + '<'  @|tojson ~ '<'  @|tojson(ensure_ascii=true)  @|replace('b', '<')  @|replace('b', '<') + '<'  'b<'|replace('b', @)  'b<'|replace(@, 'x') + '<'  '<'|replace('<', @) + '<'
@|default('<')  @|d('<') + '<'  @|d('<', true)  nowhere|default(@)  nowhere|default(@) + '<'  nowhere|d(default_value=@) ~ '<'  @|indent(2)  @|indent(2) + '<'  '<'|indent(@)  @|first  @|first + '<'  @|last  @|list  @|list|join  @|reverse  @|reverse + '<'
[@]  [@]|join('<')  [@, '<']|join('&')  ['<', 'a']|join(@)  ['<', 'a']|join(@) + '<'  [@]|first + '<'  [@]|tojson  [@]|string  [@] ~ ''  {'k': @}  {'k': @}|tojson  {'k': @}.k + '<'  {'k': @}.k  (@, 1)  (@,)[0]  [@]|map('upper')|list  [@] == ['<b>&']  {@: 1}
words|map('safe')|list  words|map('safe')|join('<')  words|map('replace', 'a', @)|list  words|map('default', @)|list  words|select('in', @)|list  words|select('eq', @)|list  @|select|list  @|map('upper')|list  @|batch(2)|list  @|items|list  @|dictsort  @|int  @|float  @|abs  @|round  @|sum  @|selectattr('a')|list
@ is defined  @ is undefined  @ is none  @ is string  @ is mapping  @ is sequence  @ is iterable  @ is number  @ is boolean  @ is true  @ is false  @ is callable  @ is odd  @ is divisibleby 2  @ is eq '<b>&'  @ is ne '<'  @ is in 'a<b>&'  '<' is in @  '<b>&' is eq @  @ is lt 'a'  @ is escaped  @ is safe
@ == '<b>&'  '<b>&' == @  @ != '<'  @ < 'a'  'a' >= @  '<' < @ < 'z'  @ in 'x<b>&'  '<' in @  @ in ['<b>&']  @ in {'<b>&': 1}  @ not in 'x'  @ == @  not @  not @ ~ '<'  -@  @ and '<'  @ or '<'  (@ and '<') + '<'  ('<' and @) + '<'  ('<' and @) ~ '<'  ('' or @) + '<'  (@ or '<') ~ '<'  @ - 1  @ // 1  @ ** 2
1 if @ else 2  @ if true else '<'  (@ if true else '<') + '<'  (@ if true else '<') ~ '<'  ('<' if false else @) ~ '&'  (@ if false) ~ '<'  (@ if true)|tojson  (@ if false) is defined
@[0]  @[0] + '<'  @[1:]  @[1:] + '<'  @[::-1]  @['upper']  'abc'[@]  messages[0][@]  @.upper()  @.strip() + '<'  @.strip()  @.split('b')  @.split('b')|join('<')  @.replace('b', '<')  '<b>'.replace('b', @)  @.startswith('<')  'a'.startswith(@)  @.format('<')  '{}<'.format(@)  '{}<'.format(@) + '<'
@.join(['<', 'a'])  '<'.join([@, 'a'])  @.join('<a')  @.count('b')  @.find('&')  @.splitlines()  @.title()  @.capitalize()  @.removeprefix('<')  @.removesuffix('&') + '<'  @.striptags()  @.striptags is defined  @.unescape()  @.escape('<')  @.__html__()  @.foo  @.foo is defined  @.upper is defined  @()  @.items()  @.get('a')
messages[0].get('x', @)  messages[0].get('x', @) + '<'  range(@)  dict(a=@)  dict(a=@).a + '<'  namespace(a=@).a + '<'  namespace(a=@).a  raise_exception(@)  @|safe|safe ~ '<'  @|safe(1)  @|e  @|escape  @|forceescape  @|urlize  @|striptags  @|wordcount  @|truncate(3)  @|center(20)  @|xmlattr
"""
MARKED_STATEMENTS = r"""
{% set v = @ %}{{ v }}{{ v ~ '<' }}{{ v|length }}{% if v %}y{% endif %}{{ v is string }}
{% set v = @ %}{{ v + '<' }}
{% set v = @ %}{% set w = v %}{{ w + '<' }}
{% set v = @ %}{% set w = v %}{{ w ~ '<' }}{{ w }}
{% set v = '<' ~ @ %}{{ v + '<' }}
{% set v = @|tojson %}{{ v + '<' }}{{ v.upper() }}
{% set v = @|replace('b', '<') %}{{ v + '<' }}{{ v[0] }}
{% set v %}<{{ @ }}{% endset %}{{ v + '<' }}
{% set v | safe %}<{{ @ }}{% endset %}{{ v + '<' }}
{% set v | safe %}<{{ @ }}{% endset %}{{ v }}{{ v ~ '<' }}
{% set v | safe | upper %}<{{ @ }}b{% endset %}{{ v ~ '<' }}
{% set v | safe | replace('b', 'c') %}<{{ @ }}b{% endset %}{{ v + '<' }}
{% set v | replace('b', @) %}<b{% endset %}{{ v + '<' }}
{% filter safe %}<{{ @ }}{% endfilter %}
{% filter safe|upper %}<{{ @ }}{% endfilter %}
{% filter replace('<', @) %}<a{% endfilter %}
{% with v = @ %}{{ v }}{{ v ~ '<' }}{% endwith %}
{% with v = @ %}{{ v + '<' }}{% endwith %}
{% set v = 'a' %}{% if true %}{% set v = @ %}{% endif %}{{ v + '<' }}
{% set v = 'a' %}{% if true %}{% set v = @ %}{% endif %}{{ v ~ '<' }}
{% set a, b = @, '<' %}{{ a ~ b }}
{% set a, b = @, '<' %}{{ a + b }}
{% set a, b, c, d = @ %}{{ a + '<' }}
{% set ns = namespace() %}{% set ns.v = @ %}{{ ns.v + '<' }}
{% set ns = namespace() %}{% set ns.v = @ %}{{ ns.v ~ '<' }}
{% set ns = namespace(l=[]) %}{% set ns.l = ns.l + [@] %}{{ ns.l }}
{% set ns = namespace(s='<') %}{% set ns.s = ns.s ~ @ %}{{ ns.s + '<' }}
{% set ns = namespace(s='<') %}{% set ns.s = ns.s + @ %}{{ ns.s }}
{% macro m(a) %}{{ a }}{{ a + '<' if a is string }}{% endmacro %}{{ m(@) }}
{% macro m(a) %}<{{ a }}{% endmacro %}{{ m(@) + '<' }}
{% macro m(a='d') %}{{ a + '<' }}{% endmacro %}{{ m(a=@) }}
{% macro m(a=@) %}{{ a + '<' }}{% endmacro %}{{ m() }}
{% macro m() %}<{{ @ }}{% endmacro %}{{ m() + '<' }}{{ m() ~ @ }}
{% set v = @ %}{% macro m() %}{{ v + '<' }}{% endmacro %}{{ m() }}
{% set v = @ %}{% macro m() %}{{ v ~ '<' }}{% endmacro %}{{ m() + '<' }}
{% macro m() %}{{ caller(@) }}{% endmacro %}{% call(a) m() %}{{ a + '<' }}{% endcall %}
{% macro m() %}{{ caller() + '<' }}{% endmacro %}{% call m() %}{{ @ }}{% endcall %}
{% macro m(a) %}{{ a ~ caller() }}{% endmacro %}{% call m(@) %}<{% endcall %}
{% for c in @ %}{{ c + '<' }}{{ loop.last }}{% endfor %}
{% for c in [@] %}{{ c + '<' }}{% endfor %}
{% for c in ['<'] if @ %}{{ c }}{% endfor %}
{% for k, v in messages[2].d.items() %}{% set v = v|tojson|safe if v is mapping or (v is sequence and v is not string) else v|string %}{{ v }}{{ '<' ~ v ~ @ }}{% endfor %}
{% for k, v in messages[2].d.items() %}{% set v = v|tojson|safe if v is mapping or (v is sequence and v is not string) else v|string %}{{ v + '<' }}{% endfor %}
{% for i in [1, 2] %}{% set v = @ %}{{ v }}{% endfor %}{{ v is defined }}
{% if @ == '<b>&' %}a{% elif @ %}b{% else %}c{% endif %}
{% generation %}{{ @ }}{% set v = @ %}{{ v ~ '<' }}{% endgeneration %}
{% set messages = @ %}{{ messages }}{{ messages ~ '<' }}
{% set v = @ %}{% set v = v ~ '<' %}{{ v + '<' }}
{% set v = @ %}{{ v.role }}
{% set v = @ %}{{ v[0] }}
{% set v = @ %}{{ [v] }}
{% set v = @ %}{{ '%s<' % v }}
"""

# What loops go over, and what they say of themselves then.
LOOPED = ["'aé😀'", "messages[2].s", "''", "words|map('upper')", "words|select('in', ['beta', 'alpha'])", "numbers|reject('eq', 2)", "messages|selectattr('role', 'eq', 'user')",
          "messages|rejectattr('role', 'eq', 'user')", "numbers|reverse", "'abc'|reverse", "range(3)", "range(3)|reverse", "[1, 2, 3]|batch(2)", "messages[2].d", "messages[2].d.keys()",
          "messages[2].d.values()", "messages[2].d.items()", "messages[2].d|items", "messages[2].d|dictsort", "messages[2].d|list", "messages[2].d.keys()|reject('in', ['a'])", "words[1:]", "words[::-1]",
          "words[:0]", "1, 2", "(1, 2)", "'a', 'b'", "words + ['x']", "words or ['x']", "nowhere", "z", "nowhere.x or words", "words|list", "words|join", "'a b'.split()", "'ab' if z else words[0]",
          "('ab' if z else words[0])", "{'a': 1, 'b': 2}", "dict(a=1)", "messages|map(attribute='role')", "'a\\nb'.splitlines()", "words|first", "count|string", "(words|map('upper')|list)[1:]"]
LOOPS = r"""
{% for x in @ %}{{ loop.index }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }};{% else %}none{% endfor %}
{%- for x in @ if x -%}{{ loop.last }}{{ loop.length }}{{ loop.nextitem is defined }}{{ loop.previtem is defined }};{% endfor %}
{%-for x in @-%}{{ x }}{{ ',' if not loop.last }}{% for y in @ %}{{ loop.revindex0 }}{% endfor %}{%endfor%}
{% for x in @ %}{% if loop.last %}{% break %}{% endif %}{{ x }}{% endfor %}
"""
ONE_LOOPS = r"""
{% for n in [[1, [2]], [3]] recursive %}{{ loop.last }}{{ loop(n) if n is sequence and n is not string else n }}{% endfor %}
{% for n in ['ab'] recursive %}{{ loop.last }}{{ loop(n) if loop.depth < 2 else n }}{% endfor %}
{% for n in ['ab'] recursive %}{{ loop['length'] }}{{ loop(n) if loop.depth < 2 else n }}{% endfor %}
{% for n in 'ab' if n recursive %}{{ n }}{{ loop(n) if loop.depth < 2 }}{% endfor %}
{% for recursive in 'ab' %}{{ recursive }}{{ loop.last }}{% endfor %}
{% for x in people[0].in %}{{ x }}{{ loop.last }}{% endfor %}
{% for x in people[0]['in'] %}{{ x }}{{ loop.last }}{% endfor %}
{% for x in {'recursive': 'ab', 'if': 'cd'}.recursive %}{{ x }}{{ loop.last }}{% endfor %}
{% for x in recursive %}{{ x }}{{ loop.last }}{% endfor %}
{% set recursive = 'ab' %}{% for x in recursive %}{{ x }}{{ loop.last }}{% endfor %}
{% for x in 'ab' if 'a' in x %}{{ x }}{{ loop.last }}{% endfor %}
{% for x in ('ab' if true else 'c') if x in 'ab' %}{{ x }}{{ loop.last }}{% endfor %}
{% for x in 'a' in 'ab' %}{{ x }}{% endfor %}
{% for x in %}{{ x }}{% endfor %}
{% for x in if y %}{{ x }}{% endfor %}
{% for x in 'ab'|kvr_counted %}{{ x }}{% endfor %}
{% for x in words[0] # c %}
"""


def looped():
    for loop in LOOPS.strip().split("\n"):
        for over in LOOPED:
            yield loop.replace("@", over)
    yield from ONE_LOOPS.strip().split("\n")


def marked():
    for place in PLACES.strip().replace("\n", "  ").split("  "):
        for m in MARKED:
            yield "{{ " + place.replace("@", m) + " }}"
    for statement in MARKED_STATEMENTS.strip().split("\n"):
        for m in MARKED[:5]:
            yield statement.replace("@", m)


def expressions():
    """Two spaces or a line end between one and the next; a line end within quotes belongs to the text."""
    one, quote = "", ""
    i, text = 0, EXPRESSIONS
    while i < len(text):
        c = text[i]
        if quote:
            one += c
            if c == "\\":
                i += 1
                one += text[i]
            elif c == quote:
                quote = ""
        elif c in "'\"":
            one, quote = one + c, c
        elif c == "\n" or text.startswith("  ", i):
            if one.strip():
                yield one.strip()
            one = ""
        else:
            one += c
        i += 1


def templates():
    for e in expressions():
        yield "{{ " + e + " }}"
    for v in VALUES:
        yield "{{ " + v + " }}"
        for f in FILTERED:
            yield "{{ (" + v + ")|" + f + " }}"
        for t in TESTED:
            yield "{{ (" + v + ") is " + t + " }}"
    for a in OPERANDS:
        for b in OPERANDS:
            for op in COMPARED:
                yield "{{ (" + a + ") " + op + " (" + b + ") }}"
    yield from STATEMENTS.strip("\n").split("\n")
    yield from WHOLE
    yield from marked()
    yield from looped()


def render(template):
    """The text, or None where it raises or has an address, which is never the same twice."""
    odd = {"odd": ODD} if "odd." in template else {}
    try:
        text = _compile_jinja_template(template).render(bos_token="<s>", documents=None, add_generation_prompt=True, **copy.deepcopy(VARIABLES), **odd)
        return None if " at 0x" in text else text
    except Exception:
        return None


if __name__ == "__main__":
    random.seed(1)  # lipsum()
    cases = [json.dumps([t, render(t)]) for t in dict.fromkeys(templates())]
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "jinja.json")
    with open(path, "w", encoding="ascii") as f:
        f.write('{"jinja2": "%s", "transformers": "%s",\n"variables": %s,\n"odd": %s,\n"cases": [\n' % (jinja2.__version__, transformers.__version__, json.dumps(VARIABLES), json.dumps(ODD)))
        f.write(",\n".join(cases) + "\n]}\n")
    print(len(cases), "templates,", sum(c.endswith("null]") for c in cases), "raise")
