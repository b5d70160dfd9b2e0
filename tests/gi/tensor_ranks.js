// Models whose layers several ranks share, from JavaScript, whose ranks are processes: one of them here, and what can't
// be.
import Ebb from 'gi://Ebb?version=1.0';

import {check, checkFails, finish} from './support/check.js';

const group = Ebb.init_process_group('single');

function makeGpt() {
    const config = Ebb.GptConfig.new();
    for (const [name, value] of Object.entries({layers: 2, width: 16, heads: 4, context: 8, vocab: 32}))
        config[name] = value;
    config.dropout = 0;
    Ebb.manual_seed(1);
    return Ebb.Gpt.new(config);
}

function train(model) {
    const tokens = Ebb.tensor([[1, 2, 3, 4, 5, 6, 7, 8]], Ebb.DType.I64);
    model.loss(tokens, tokens).backward();
    return model.get_parameters(true).map(parameter => parameter.grad.toArray().join()).join(';');
}

const expected = train(makeGpt());
const isNear = found => {
    const [a, b] = [found, expected].map(text => text.split(/[,;]/).map(Number));
    return a.length === b.length && a.every((value, i) => Math.abs(value - b[i]) < 1e-6);
};

// -- parallel layers

for (const options of [null, {sequence_parallel: true}, {synchronize_weights: false, plan: {
    'h.*.attn': 'attention', 'h.*.attn.c_attn': 'column-qkv', 'h.*.attn.c_proj': 'row', 'h.*.mlp.c_fc': 'column',
    'h.*.mlp.c_proj': 'row', 'wte': Ebb.ParallelStyle.VOCAB}}]) {
    const model = makeGpt();
    check(Ebb.parallelize(model, group, options) === model, 'another module');
    check(Ebb.parallel_is_parallelized(model), 'not parallelized');
    check(isNear(train(model)), 'parallelized: the gradients differ');
}
checkFails(() => Ebb.parallelize(makeGpt(), group, {plan: {'h.*': 'diagonal'}}), "'h.*'", "'diagonal'", 'ParallelStyle',
    "'column'");
checkFails(() => Ebb.parallelize(makeGpt(), group, {sequence_parallel: 'no'}), 'sequence_parallel', "'no'", 'true');
checkFails(() => Ebb.parallelize(makeGpt(), group, {plan: {'wte': 33}}), "'wte'", 'ParallelStyle');
checkFails(() => Ebb.Mesh.new(group, ['data', 'tensor'], [1, 1]).get_group('tnesor'), 'tnesor', '"data", "tensor"');
checkFails(() => Ebb.parallelize(makeGpt(), group, {plan: {'nothing': 'row'}}), 'nothing');

const x = Ebb.ones([2, 2]);
check(Ebb.parallel_gather(Ebb.parallel_scatter(Ebb.parallel_reduce(Ebb.parallel_copy(x)), 1), 1).toArray().join() ===
    '1,1,1,1', 'collectives of one rank');

// -- other systems' configurations

const model = makeGpt();
const oslo = {
    model_parallelism: {enable: true, tensor_parallel_size: 1},
    activation_checkpointing: {enable: true, cpu_checkpointing: true},
};
check(Ebb.initialize(model, oslo) === model, 'initialize: another module');
check(Ebb.initialize_get_mesh(model).get_size('tensor') === 1, 'the mesh');
check(train(model) === expected, 'initialised: the gradients differ');
oslo.activation_checkpointing.partitioned_checkpointing = true;
checkFails(() => Ebb.initialize(makeGpt(), oslo), 'partitioned_checkpointing', 'tensor_parallel_size');

const recomputed = makeGpt();
Ebb.recompute_configure(recomputed,
    {recompute_granularity: 'full', recompute_method: 'block', recompute_num_layers: 1});
check(train(recomputed) === expected, 'recomputed: the gradients differ');
checkFails(() => Ebb.recompute_configure(makeGpt(), {recompute_granularity: 'half'}), 'recompute_granularity');

// -- random numbers

const tracker = Ebb.GeneratorTracker.new();
tracker.add('mine', 7);
Ebb.manual_seed(7);
const drawn = Ebb.rand([3]).toArray().join();
Ebb.manual_seed(1);
check(tracker.with_fork('mine', () => Ebb.rand([3]).toArray().join()) === drawn, 'a fork draws other numbers');
checkFails(() => tracker.with_fork('mine', () => {
    throw new Error('inside');
}), 'inside');
check(Ebb.Generator.get_default().get_seed() === 1, 'the fork was not joined');
checkFails(() => tracker.with_fork('yours', () => true), 'yours');
Ebb.model_parallel_manual_seed(3);
check(Ebb.GeneratorTracker.get_default().has('model-parallel-rng'), 'no generator for tensor ranks');

// -- stores

const store = new Ebb.PartitionedStore({group, next: new Ebb.HostStore()});
const checkpointed = makeGpt();
Ebb.checkpoint_wrap_each(checkpointed, Ebb.TransformerBlock.$gtype, {store});
check(train(checkpointed) === expected, 'partitioned: the gradients differ');

finish();
