// Tokenizers of folders from JavaScript: opened, asked, and decoding as tokens come.
import Ebb from 'gi://Ebb?version=1.0';
import GLib from 'gi://GLib';

import {check, checkFails, finish} from './support/check.js';

const here = GLib.path_get_dirname(GLib.Uri.parse(import.meta.url, 0).get_path());
const folder = GLib.build_filenamev([here, '..', 'fixtures', 'tokenizers', 'llama3']);
const tokenizer = Ebb.open_tokenizer(folder);
const tokens = tokenizer.encode_text_full('a😀 z', true);
const begin = tokenizer.get_special_token(Ebb.SpecialToken.BOS);

check(tokens[0] === begin, 'a text does not begin with the token that begins texts');
check(tokenizer.get_token(begin) === '<|begin_of_text|>', 'the token that begins a text has another name');
check(tokenizer.decode_text_full(tokens, true) === 'a😀 z', 'the text does not come back');

const decoder = Ebb.TokenDecoder.new(tokenizer, true);
check(tokens.map(token => decoder.push(token)).join('') + decoder.finish() === 'a😀 z', 'the parts are not the text');

checkFails(() => Ebb.open_tokenizer('/nowhere'), 'there is no folder /nowhere');
checkFails(() => decoder.push(1e6), 'token 1000000: it must be in');
finish();
