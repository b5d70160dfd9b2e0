// Models from folders, opened and saved from JavaScript.
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
    checkFails(() => Ebb.open_model('/nowhere'), '/nowhere/config.json', 'No such file');
}

const folder = Gio.File.new_for_path(saved);
for (const info of folder.enumerate_children('standard::name', Gio.FileQueryInfoFlags.NONE, null))
    folder.get_child(info.get_name()).delete(null);
folder.delete(null);
GLib.rmdir(scratch);

finish();
