// Models of folders for JavaScript, their tokenizers, and text from them: a part of Ebb.js, which adds it to Ebb.

/* exported addModels */

const templateVariables = {enable_thinking: 'thinking', date_string: 'date'};

function addModels(Ebb) {
    const findQuantization = base => base === null ? Ebb.Quantization.NONE : Ebb.quantization_from_name(base)[1];
    // The model of a folder or a .gguf file; dtype, an Ebb.DType, converts its weights as they are read; base, 'int8'
    // or 'nf4', quantises those of its linear layers.
    Ebb.open_model = function (folder, dtype = Ebb.MODEL_KEEP_DTYPE, base = null) {
        return Ebb.model_open_quantized(folder, dtype, findQuantization(base));
    };
    // Quantises the weights of a model's linear layers in place, to 'int8' or 'nf4'; returns the model.
    const quantize = Ebb.quantize;
    Ebb.quantize = function (model, base = 'nf4') {
        quantize(model, findQuantization(base));
        return model;
    };
    // Saves a model as a folder, its weights in files of at most max_file_size bytes; 0 for 5 GB. A path that ends with
    // .gguf becomes one file for llama.cpp, whose dtype may also be Ebb.DType.F16 or Ebb.MODEL_Q8_0.
    Ebb.save_model = function (model, folder, dtype = Ebb.MODEL_KEEP_DTYPE, max_file_size = 0) {
        Ebb.model_save_full(model, folder, dtype, max_file_size);
    };

    // Continues prompts: texts, with the tokenizer among the options, lists of tokens or tensors [n]. {messages: […]}
    // is a conversation to be answered. Options are as {tokenizer, max_tokens: 20, temperature: 0.8, stop_tokens: [2]},
    // or {tokenizer, maxTokens: 20}. on_token (row, token, text) is called for each token as it comes; false ends all
    // rows.
    Ebb.Gpt.prototype.generate = function (prompts, options = {}, on_token = null, cancellable = null) {
        const {stop_tokens: named = null, stopTokens: stops = named, forced_eos_tokens: last = null,
            forcedEosTokens = last, suppress_tokens: never = null, suppressTokens = never,
            begin_suppress_tokens: notFirst = null, beginSuppressTokens = notFirst, ...settings} = options;
        const made = new Ebb.GenerationOptions(_listStopStrings(settings));
        if (forcedEosTokens !== null)
            made.set_forced_eos_tokens([forcedEosTokens].flat());
        if (suppressTokens !== null)
            made.set_suppress_tokens([suppressTokens].flat());
        if (beginSuppressTokens !== null)
            made.set_begin_suppress_tokens([beginSuppressTokens].flat());
        if (stops !== null)
            made.set_stop_tokens([stops].flat());
        const tensors = prompts?.messages === undefined ? _listPrompts(Ebb, prompts, made.tokenizer)
            : [_prepareAnswer(Ebb, this, prompts.messages, made, stops === null)];
        let failure = null;
        const take = (row, token, text) => {
            try {
                return on_token(row, token, text) !== false;
            } catch (error) {
                failure = {error};
                return false;
            }
        };
        const generation = Ebb.model_generate(this, tensors, made, on_token && take, cancellable);
        if (failure !== null)
            throw failure.error;
        return generation;
    };
    const rows = (generation, get) => [...Array(generation.get_n_rows()).keys()].map(get);
    // For each prompt the tokens, the text (null without a tokenizer), and why it ended: 'length', 'token', 'string',
    // 'context' or 'stopped'.
    Object.defineProperties(Ebb.Generation.prototype, {
        tokens: {get() {
            return rows(this, row => _listTokens(this.get_tokens(row)));
        }},
        texts: {get() {
            return rows(this, row => this.get_text(row));
        }},
        ends: {get() {
            const {LENGTH, TOKEN, STRING, CONTEXT, STOPPED} = Ebb.GenerationEnd;
            const names = new Map([[LENGTH, 'length'], [TOKEN, 'token'], [STRING, 'string'], [CONTEXT, 'context'],
                [STOPPED, 'stopped']]);
            return rows(this, row => names.get(this.get_end(row)));
        }},
    });

    // The tokenizer of a folder with a tokenizer.json.
    Ebb.open_tokenizer = folder => Ebb.Tokenizer.open(folder);
    // A conversation, [{role: 'user', content: 'Hello'}, …], as the model reads it: its tokens, or its text with
    // {tokenize: false}. With {add_generation_prompt: true} it ends with the beginning of an answer.
    Ebb.Tokenizer.prototype.apply_chat_template = function (messages, settings = {}) {
        const {add_generation_prompt: prompts = false, tokenize = true, ...variables} = settings;
        const [roles, contents] = _splitMessages(messages);
        const template = Ebb.ChatTemplate.new_for_tokenizer(this);
        for (const [name, value] of Object.entries(variables)) {
            if (!Object.hasOwn(templateVariables, name)) {
                const known = ['add_generation_prompt', 'tokenize', ...Object.keys(templateVariables)].join(', ');
                throw new TypeError(`apply_chat_template has no option ${name}: its options are ${known}`);
            }
            template[templateVariables[name]] = value;
        }
        return tokenize ? _listTokens(template.encode(this, roles, contents, prompts)[0])
            : template.render(roles, contents, prompts)[0];
    };
}

// A stop string may be given alone.
function _listStopStrings(settings) {
    return Object.fromEntries(Object.entries(settings).map(([name, value]) =>
        [name, ['stop_strings', 'stopStrings'].includes(name) && typeof value === 'string' ? [value] : value]));
}

function _listTokens(tensor) {
    return [...tensor.toArray()].map(Number);
}

function _makePrompt(Ebb, prompt, tokenizer) {
    if (prompt instanceof Ebb.Tensor)
        return prompt;
    if (typeof prompt === 'string') {
        if (tokenizer === null)
            throw new TypeError(`generate: prompt ${_show(prompt)} is a text: give the tokenizer too`);
        // Not as a string, which would end at U+0000.
        prompt = _listTokens(tokenizer.encode_full(new imports.gi.GLib.Bytes(new TextEncoder().encode(prompt)), true));
    }
    if (!Array.isArray(prompt) || !prompt.every(Number.isSafeInteger))
        throw new TypeError(`generate: prompt is ${_show(prompt)}: it must be a text, an array of tokens or a tensor`);
    return Ebb.Tensor.new_from_ints(prompt, [prompt.length]);
}

function _listPrompts(Ebb, prompts, tokenizer) {
    const isOne = !Array.isArray(prompts) || (prompts.length > 0 && prompts.every(Number.isSafeInteger));
    return (isOne ? [prompts] : prompts).map(prompt => _makePrompt(Ebb, prompt, tokenizer));
}

// The roles and the contents of a conversation.
// What a key beside role and content may have: nothing, or what says that an answer is learned.
function _isHarmless(key, value) {
    if (key === 'weight')
        return value === 0 || value === 1;
    if (key === 'train')
        return typeof value === 'boolean';
    return value === null || value === undefined || value === false || value === 0 || value === ''
        || (typeof value === 'object' && Object.keys(value).length === 0);
}

function _splitMessages(messages) {
    if (!Array.isArray(messages))
        throw new TypeError(`messages: ${_show(messages)}: must be an array, as [{role: 'user', content: 'Hello'}]`);
    messages.forEach((message, i) => {
        if (typeof message?.role !== 'string' || typeof message?.content !== 'string')
            throw new TypeError(`messages[${i}]: must be an object with the strings role and content`);
        for (const [key, value] of Object.entries(message)) {
            if (!['role', 'content'].includes(key) && !_isHarmless(key, value)) {
                throw new TypeError(`messages[${i}].${key} is ${_show(value)}: templates write role and content, and `
                    + 'weight (0 or 1) and train (a boolean) say what is learned: leave it out');
            }
        }
    });
    return [messages.map(({role}) => role), messages.map(({content}) => content)];
}

// The prompt of a conversation. Where the caller leaves the stop tokens free, one that ends a turn is added.
function _prepareAnswer(Ebb, model, messages, options, isFree) {
    const tokenizer = options.tokenizer;
    if (tokenizer === null)
        throw new TypeError('generate: messages need the tokenizer: give it too');
    const tokens = tokenizer.apply_chat_template(messages, {add_generation_prompt: true});
    const end = tokenizer.find_token(Ebb.ChatTemplate.new_for_tokenizer(tokenizer).get_end_of_turn());
    if (isFree && end >= 0)
        options.set_stop_tokens([...Ebb.GenerationOptions.new_for_model(model).get_stop_tokens(), end]);
    return _makePrompt(Ebb, tokens, tokenizer);
}

function _show(value) {
    return typeof value === 'string' ? `'${value}'` : `${value}`;
}
