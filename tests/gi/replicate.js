// Modules that several ranks train together, from JavaScript: here one rank.
import Ebb from 'gi://Ebb?version=1.0';

import {check, checkFails, finish} from './support/check.js';

const module = Ebb.Linear.new(4, 2, true);
const same = Ebb.replicate(module);
check(same === module && Ebb.replicate_is_wrapped(module), 'the same module');
checkFails(() => Ebb.replicate(module), 'already');

const x = Ebb.randn([3, 4]);
const train = () => module.run(x).square().sum().backward();
const group = Ebb.ProcessGroup.get_default();
const reductions = () => Number(group.get_n_calls(Ebb.Collective.ALL_REDUCE));
const inside = Ebb.no_sync(() => {
    train();
    return Ebb.is_gradient_sync_enabled();
});
check(inside === false && Ebb.is_gradient_sync_enabled(), 'no_sync is a region');
check(reductions() === 0, 'nothing is reduced inside');
train();
check(reductions() === 1, 'the sum is reduced once');

const mesh = Ebb.Mesh.new(group, ['data', 'shard'], [1, -1]);
check(mesh.get_size('shard') === 1 && mesh.get_coordinate('data') === 0, 'a mesh of one rank');
checkFails(() => Ebb.Mesh.new(group, ['data'], [2]), 'the group has 1 ranks, not 2');

finish();
