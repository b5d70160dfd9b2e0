// Process groups and sharded modules from JavaScript: one rank, and what can't be.
import Ebb from 'gi://Ebb?version=1.0';

import {check, checkFails, finish} from './support/check.js';

function mlp() {
    Ebb.manual_seed(1);
    return Ebb.sequential(Ebb.Linear.new(4, 6, true), Ebb.Tanh.new(), Ebb.Linear.new(6, 2, true));
}

function train(module) {
    module.run(Ebb.ones([3, 4])).square().sum().backward();
    return module.get_parameters(true).map(parameter => parameter.grad.toArray().join()).join(';');
}

const expected = train(mlp());

const group = Ebb.init_process_group('single');
check(group.rank === 0 && group.size === 1 && group.backend === 'single', 'a group of one');
check(group.all_gather(Ebb.ones([2])).toArray().join() === '1,1', 'all_gather');

const sharded = mlp();
Ebb.fully_shard_wrap_each(sharded, Ebb.Linear.$gtype, null, {flatten: true, reshard_after_forward: true});
check(train(sharded) === expected, 'sharded: the gradients differ');
check(Ebb.fully_shard_is_wrapped(sharded), 'the root is wrapped last');
const shape = Ebb.with_full_params(sharded, module => module.get_parameters(true)[0].shape.join());
check(shape === '6,4', `whole parameters have the shape ${shape}`);

const kept = mlp();
Ebb.replicate(kept, group, {unused_parameters: 'zero'});
Ebb.no_sync(() => kept.run(Ebb.ones([3, 4])).square().sum().backward());
check(kept.get_parameters(true).every(parameter => parameter.grad === null), 'replicated: a local gradient is shown');
const sum = train(kept).split(/[;,]/).map(Number);
check(sum.every((value, i) => value === 2 * Number(expected.split(/[;,]/)[i])), 'replicated: the gradients differ');

checkFails(() => Ebb.run_ranks(2, () => true), 'one thread', 'mpirun', 'init_process_group');
checkFails(() => Ebb.fully_shard(mlp(), null, {flat: true}), 'no option flat');
checkFails(() => Ebb.fully_shard(mlp(), null, {reshard_after_forward: 'often'}), "'often'", "'never'");
checkFails(() => Ebb.replicate(mlp(), null, {unused_parameters: 'skip'}), "'skip'", "'zero'");
checkFails(() => Ebb.init_process_group('pigeons'), 'pigeons');

finish();
