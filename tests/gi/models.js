// Models from folders, opened and saved from JavaScript, and what they generate.
import Ebb from 'gi://Ebb?version=1.0';
import GLib from 'gi://GLib';
import Gio from 'gi://Gio';

import {check, checkFails, finish} from './support/check.js';

const fixtures = GLib.build_filenamev([GLib.path_get_dirname(GLib.filename_from_uri(import.meta.url)[0]), '..',
    'fixtures', 'models']);
const scratch = GLib.Dir.make_tmp('ebb-models-XXXXXX');
const saved = GLib.build_filenamev([scratch, 'saved']);

{
    const model = Ebb.open_model(`${fixtures}/llama3`);
    check(model instanceof Ebb.Gpt && model.config.layout === Ebb.GptLayout.LLAMA, 'a model knows its configuration');
    Ebb.save_model(model, saved, Ebb.DType.BF16);
    const again = Ebb.open_model(saved);
    const [weight] = again.get_parameters(true);
    check(weight.get_dtype() === Ebb.DType.BF16, 'weights have the dtype that is asked for');
    const [wide] = Ebb.open_model(saved, Ebb.DType.F32).get_parameters(true);
    check(wide.get_dtype() === Ebb.DType.F32, 'weights are converted as they are read');
    checkFails(() => Ebb.open_model('/nowhere'), 'there is no folder /nowhere');
}

const chat = GLib.build_filenamev([fixtures, '..', 'chat-model']);
const expected = JSON.parse(new TextDecoder().decode(
    GLib.file_get_contents(GLib.build_filenamev([chat, 'expected.json']))[1]));
const [first, second] = expected.texts;
const model = Ebb.open_model(chat);
const tokenizer = Ebb.open_tokenizer(chat);
const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

{
    const texts = [first.text_before, second.text_before];
    const made = model.generate(texts, {tokenizer, max_tokens: 24, stop_tokens: 2});
    check(same(made.texts, [first.text, second.text]), 'texts are continued as in transformers');
    check(same(made.tokens, [first.tokens, second.tokens]), 'their tokens are those of transformers');
    check(same(made.ends, ['length', 'length']), 'why rows ended has names');
    check(same(model.generate(first.text_before, {tokenizer, maxTokens: 3, stopTokens: []}).tokens,
        [first.tokens.slice(0, 3)]), 'one text, and names as JavaScript writes them');
    for (const prompt of [first.prompt, [first.prompt], [Ebb.tensor(first.prompt)]]) {
        const {tokens, texts: none} = model.generate(prompt, {max_tokens: 3});
        check(same(tokens, [first.tokens.slice(0, 3)]) && same(none, [null]), 'tokens are prompts');
    }
    check(model.generate(first.text_before, {tokenizer, stop_strings: 'V'}).ends[0] === 'string', 'a stop string');
    check(same(model.generate([5], {max_tokens: 1, stop_tokens: [], forced_eos_tokens: [7, 6]}).tokens, [[6]]),
        'a forced last token');
}

{
    const messages = [{role: 'system', content: expected.system}, {role: 'user', content: expected.question}];
    const prompt = tokenizer.apply_chat_template(messages, {add_generation_prompt: true});
    check(same(prompt, expected.answer.prompt), 'a conversation becomes the tokens of transformers');
    check(tokenizer.apply_chat_template(messages, {tokenize: false}).endsWith(`${expected.question}<|im_end|>\n`),
        'a conversation becomes text');
    const made = model.generate({messages}, {tokenizer, max_tokens: 24});
    check(same(made.texts, [expected.answer.text]), 'a conversation is answered as in transformers');
}

{
    const seen = [];
    const made = model.generate([5], {max_tokens: 9, stop_tokens: []}, (row, token) => seen.push(token) < 3);
    check(same(seen, made.tokens[0]) && same(made.ends, ['stopped']), 'a callback stops generation');
    checkFails(() => model.generate([5], {}, () => {
        throw new Error('mine');
    }), 'mine');
    checkFails(() => model.generate(['x']), 'give the tokenizer too');
    checkFails(() => model.generate([[1.5]]), 'it must be a text, an array of tokens or a tensor');
    checkFails(() => model.generate(['x'], {tokenizer, max_token: 3}), 'max_token');
    checkFails(() => model.generate({messages: 'x'}, {tokenizer}), 'must be an array');
    checkFails(() => model.generate({messages: []}), 'messages need the tokenizer');
    checkFails(() => tokenizer.apply_chat_template([{role: 'user'}]), 'messages[0]');
    checkFails(() => tokenizer.apply_chat_template([{role: 'user', content: 'x'}], {tools: []}), 'no option tools');
    for (const wrong of [{weight: 5}, {train: 'no'}, {tool_calls: [{}]}]) {
        checkFails(() => tokenizer.apply_chat_template([{role: 'user', content: 'x', ...wrong}]),
            `messages[0].${Object.keys(wrong)[0]} is `);
    }
    const harmless = {role: 'user', content: 'x', weight: 1, train: false, tool_calls: [], name: null};
    check(tokenizer.apply_chat_template([harmless]).length > 0, 'keys without a value, and what says what is learned');
    checkFails(() => tokenizer.apply_chat_template([{role: 'user', content: 'x', name: 'y'}]), 'messages[0].name is ');
    checkFails(() => Ebb.ByteTokenizer.new().apply_chat_template([{role: 'user', content: 'x'}]), 'no chat template');
}

{
    const config = Ebb.GptConfig.new();
    const {rotary} = config;
    rotary.set_short_factors([1, 1.5]);
    check(same(rotary.get_short_factors(), [1, 1.5]), 'lists of factors are set');
}

const folder = Gio.File.new_for_path(saved);
for (const info of folder.enumerate_children('standard::name', Gio.FileQueryInfoFlags.NONE, null))
    folder.get_child(info.get_name()).delete(null);
folder.delete(null);
GLib.rmdir(scratch);

finish();
