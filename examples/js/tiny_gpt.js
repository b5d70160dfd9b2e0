#!/usr/bin/env -S gjs -m
// Trains a tiny GPT, byte by byte, with checkpointed blocks, and samples from it.
//
//     tiny_gpt.js [FILE] [STEPS]
//
// From a build folder that is not installed:
//
//     GI_TYPELIB_PATH=build/release LD_LIBRARY_PATH=build/release GJS_PATH=bindings/js gjs -m examples/js/tiny_gpt.js
import Ebb from 'gi://Ebb?version=1.0';
import GLib from 'gi://GLib';

const [path = GLib.filename_from_uri(import.meta.url)[0], steps = '60'] = ARGV;
const context = 64;

Ebb.manual_seed(1);
const tokenizer = Ebb.ByteTokenizer.new();
const text = Ebb.TextDataset.new([path], tokenizer, 1);

const config = Ebb.GptConfig.new();
config.vocab = 256;
config.context = context;
config.width = 64;
config.heads = 4;
config.layers = 4;
config.dropout = 0.1;
const model = Ebb.Gpt.new(config);

Ebb.checkpoint_wrap_each(model, Ebb.TransformerBlock.$gtype);
const optimizer = Ebb.AdamW.new(model, 3e-3);
optimizer.exclude_from_decay();
print(`${model.count_parameters()} parameters, ${text.get_n_tokens()} bytes of text`);

for (let step = 1; step <= Number(steps); step++) {
    // Tensors are large and the garbage collector does not know: tidy () frees all that a step has made.
    const loss = Ebb.tidy(() => {
        const [, tokens, targets] = text.get_batch(8, context);
        const logits = model.run(tokens).reshape([-1, 256]);
        const mean = Ebb.cross_entropy(logits, targets.reshape([-1]));
        mean.backward();
        optimizer.clip_grad_norm(1);
        optimizer.step();
        optimizer.zero_grad();
        return mean.item();
    });
    if (step % 10 === 0 || step === 1) {
        const stats = Ebb.memory_get_stats(Ebb.Device.get_cpu());
        const peak = stats.get_peak(Ebb.Purpose.ACTIVATION) / 1e6;
        print(`step ${`${step}`.padStart(3)}  loss ${loss.toFixed(4)}  activations at most ${peak.toFixed(2)} MB`);
    }
}

model.set_training(false);
const start = tokenizer.encode_text('import ');
const sample = model.generate([start], {max_tokens: 120, temperature: 0.8, top_k: 40, slides: true});
print(tokenizer.decode_text([...start, ...sample.get_tokens(0).toArray()].map(Number)));
