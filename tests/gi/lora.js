// LoRA from JavaScript: an adapter of a small model, its options, its folder.
import Ebb from 'gi://Ebb?version=1.0';
import GLib from 'gi://GLib';

import {check, checkFails, finish} from './support/check.js';

const make = () => {
    Ebb.manual_seed(1);
    return Ebb.Gpt.new(Ebb.GptConfig.new_preset('tiny'));
};
const model = make();
const trained = () => model.get_parameter_names(true).filter(name => model.get_parameter(name).get_requires_grad());

check(Ebb.lora(model, {rank: 4, alpha: 8, targets: ['c_attn'], exclude: ['h.0.*']}) === model, 'the same model');
check(trained().length > 0 && trained().every(name => name.includes('.c_attn.lora_') && !name.startsWith('h.0.')),
    'the branches alone are trained');
checkFails(() => Ebb.lora(model), 'there is an adapter "default" already');
checkFails(() => Ebb.lora(make(), {targets: ['q_proj']}), 'matches no linear layer of this Gpt');
checkFails(() => Ebb.lora(make(), {r: 4}), '');

const quantized = Ebb.quantize(make(), 'nf4');
check(Ebb.get_quantization(quantized) === Ebb.Quantization.NF4, 'the base is quantised');
check(Ebb.lora(quantized, {rank: 4}) === quantized, 'a quantised base gets an adapter');
checkFails(() => Ebb.lora_merge(quantized), 'is nf4');
checkFails(() => Ebb.quantize(make(), 'int4'), 'no quantisation "int4"');

const folder = `${GLib.dir_make_tmp('ebb-XXXXXX')}/adapter`;
Ebb.lora_save(model, folder);
const other = Ebb.lora_load(make(), folder);
check(Ebb.lora_get_adapter(other) === 'default', 'the adapter of the folder');
Ebb.lora_merge(other);
check(Ebb.lora_is_merged(other), 'it is merged');
checkFails(() => Ebb.lora_merge(other), 'is merged: merge again after');
for (const name of ['adapter_config.json', 'adapter_model.safetensors'])
    GLib.unlink(`${folder}/${name}`);
GLib.rmdir(folder);
GLib.rmdir(GLib.path_get_dirname(folder));

finish();
