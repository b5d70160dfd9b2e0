"""A training in a call: `ebb.Trainer(model, loader, memory="2GiB", steps=1000).run()`."""
import collections
import collections.abc
import contextlib
import json
import math
import os
import re
import weakref

from gi.module import get_introspection_module
from gi.overrides import override
from gi.overrides._ebb_args import pack_result, unpack_result
from gi.overrides._ebb_budget import MemoryBudget
from gi.overrides._ebb_check import show
from gi.overrides._ebb_construct import add_attributes
from gi.overrides._ebb_errors import Error, as_plain_failure, call_back, guard
from gi.overrides._ebb_functions import tensor
from gi.overrides._ebb_loader import BatchReader, LoaderBatches, copy_tensors, make_batches
from gi.overrides._ebb_lora import lora as add_adapter
from gi.overrides._ebb_models import get_path, open_folder
from gi.overrides._ebb_options import Options
from gi.overrides._ebb_progress import Progress
from gi.overrides._ebb_signals import Interruption
from gi.overrides._ebb_tensor import Tensor, to_device, to_dtype
from gi.overrides._ebb_trainer_names import translate
from gi.repository import Gio

Ebb = get_introspection_module("Ebb")

# -- settings ----------------------------------------------------------------------------------------------------------

# Keywords that are no settings of C's options, and their defaults.
_SHARED = {"memory": None, "allow": None, "schedule": None, "warmup": None, "on_step": None, "on_evaluate": None,
           "on_save": None, "on_note": None, "progress": True}
_OWN = {"optimizer": None, "loss": None, "evaluate": None, "lora": None, "learning_rate": None, "weight_decay": None,
        "seed": None, **_SHARED}
_HINTS = {"budget": "write memory=, a size or an ebb.MemoryBudget", "lr": "write learning_rate="}


def _to_path(value):
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _to_dtype_name(value):
    return value if value is None else to_dtype(value).value_nick


def _make_keywords(kind, own, converters=(), hints=()):
    options = Options(kind, {name: None for name in own if kind.find_property(name.replace("_", "-")) is None},
                      {**dict.fromkeys(("save_best", "resume", "log"), _to_path), "dtype": _to_dtype_name,
                       **dict(converters)}, hints={**_HINTS, **dict(hints)})
    del options.defaults["budget"]
    options.defaults["progress"] = True
    return options


_options = _make_keywords(Ebb.TrainerOptions, _OWN, hints={
    "device": "write `with ebb.default_device(device):` around the model, or model.to(device)"})
_finetune_options = _make_keywords(Ebb.FinetuneOptions, _SHARED, {
    **dict.fromkeys(("adapter", "base"), _to_path),
    "held_out": lambda value: str(value) if isinstance(value, float) else _to_path(value),
    "device": lambda value: to_device(value) if isinstance(value, str) else value})


def _split(function, keywords, defaults, given):
    """Python's own keywords, checked, and the settings of C."""
    for name in given:
        if name not in keywords.defaults:
            keywords.make(function, {name: None})  # raises the error
    own = {name: given.pop(name, default) for name, default in defaults.items()}
    for name in ("loss", "on_step", "on_evaluate", "on_save", "on_note"):
        if own.get(name) is not None and not callable(own[name]):
            raise TypeError(f"{function}(): {name} is {show(own[name])}: it must be a function")
    for name in ("epochs", "learning_rate"):  # 0 says in C that it is not set
        if name not in own and given.get(name) is not None and given[name] == 0:
            raise ValueError(f"{function}(): {name} is {show(given[name])}: it must be above 0; leave it out for the "
                             "default")
    if not isinstance(own["progress"], bool):
        raise TypeError(f"{function}(): progress is {show(own['progress'])}: it must be True or False")
    return own, {name: value for name, value in given.items() if value is not None and (name, value) != ("steps", -1)}


def _check_optimizer(own):
    if own["optimizer"] is None:
        return
    if not isinstance(own["optimizer"], Ebb.Optimizer):
        raise TypeError(f"Trainer(): optimizer is {show(own['optimizer'])}: it must be an optimizer, as "
                        "ebb.AdamW(model, 3e-4)")
    for name in ("learning_rate", "weight_decay", "lora"):
        if own[name] is not None:
            how = "call ebb.lora(model, rank=8) before the optimizer is made" if name == "lora" else \
                "the optimizer has its own: leave one of both out"
            raise ValueError(f"Trainer(): optimizer and {name} are set: {how}")


def _count_steps(model, data, options):
    """The steps of the training; None if they are not known before."""
    steps, epochs, n_summed = options.get("steps"), options.get("epochs"), options.get("accumulate", 1)
    if steps is not None:
        return steps
    if not isinstance(data, Ebb.Dataset):
        n_batches = data.n_batches
        return None if n_batches is None else math.ceil((epochs or 1) * n_batches / n_summed)
    context = options.get("context") or (
        model.get_max_positions() if isinstance(model, Ebb.Gpt) else
        model.get_config().context if isinstance(model, Ebb.Bert) else None)
    if not context or not epochs:
        return None  # C says what is missing
    return math.ceil(epochs * data.get_n_rows(context) / (options.get("batch_size", 8) * n_summed))


def _to_schedule(function, schedule, warmup, n_steps):
    if schedule is None or isinstance(schedule, Ebb.Schedule):
        if warmup is not None:
            what = "schedule is not set: write schedule=\"constant\" or \"cosine\"" if schedule is None else \
                "schedule is an object, which has its own: leave one of both out"
            raise ValueError(f"{function}(): warmup is {show(warmup)}, and {what}")
        return schedule
    if schedule not in ("cosine", "constant", "constant_with_warmup"):
        raise ValueError(f"{function}(): schedule is {show(schedule)}: it must be \"cosine\", \"constant\", or an "
                         "ebb.Schedule")
    if warmup is not None and (isinstance(warmup, bool) or not isinstance(warmup, (int, float)) or not 0 <= warmup
                               or (warmup >= 1 and warmup % 1 != 0)):
        raise TypeError(f"{function}(): warmup is {show(warmup)}: it must be a number of steps, or a share of them "
                        "below 1")
    if n_steps is None and (schedule == "cosine" or 0 < (warmup or 0) < 1):
        raise ValueError(f"{function}(): schedule is {show(schedule)}, and the number of steps is not known: set steps")
    n_warm = 0 if warmup is None else math.ceil(warmup * n_steps) if 0 < warmup < 1 else int(warmup)
    if schedule == "cosine":
        return Ebb.CosineSchedule(n_warm, max(n_steps, n_warm, 1), 0.0)
    return Ebb.CosineSchedule(n_warm, max(n_warm, 1), 1.0)


def _to_budget(function, memory, allow):
    """The budget of memory= and allow=; None without memory."""
    if memory is None:
        if allow is not None:
            raise ValueError(f"{function}(): allow is {show(allow)}, and memory is not set: concessions are made "
                             "for a budget")
        return None
    if not isinstance(memory, Ebb.MemoryBudget):
        return MemoryBudget(memory, **({} if allow is None else {"allow": allow}))
    if allow is not None:
        raise ValueError(f"{function}(): memory is an ebb.MemoryBudget, which has its own allow: leave one of both out")
    return memory


# -- training ----------------------------------------------------------------------------------------------------------

class Step(collections.namedtuple("Step", "number loss learning_rate metrics")):
    """A step of a training: its number, counted from 1, its loss, and what the loss function has measured."""

    __slots__ = ()

    def __str__(self):
        metrics = "".join(f", {name} {value:.4f}" for name, value in self.metrics.items())
        return f"step {self.number}: loss {self.loss:.4f}, learning rate {self.learning_rate:.3g}{metrics}"


class Evaluation(collections.namedtuple("Evaluation", "step loss is_best")):
    """The loss of held-out data after a step."""

    __slots__ = ()

    def __str__(self):
        place = f", after step {self.step}" if self.step > 0 else ""
        perplexity = math.exp(min(self.loss, 700))
        return (f"Held out{place}: loss {self.loss:.4f}, perplexity {perplexity:.2f}"
                + (", the best so far" if self.is_best else ""))


_new, _new_within, _prepare, _run_step, _finish, _run, _evaluate, _is_done, _finetune_new = map(guard, (
    Ebb.Trainer.new, Ebb.Trainer.new_within, Ebb.Trainer.prepare, Ebb.Trainer.run_step, Ebb.Trainer.finish,
    Ebb.Trainer.run, Ebb.Trainer.evaluate, Ebb.Trainer.is_done, Ebb.finetune_new))

_CANCELLED = Gio.IOErrorEnum.CANCELLED


def _with_names(error):
    """The error with the settings as Python writes them."""
    for spec in _finetune_options.specs.values():
        if "-" in spec.name and error.message.startswith(("trainer: ", "finetune: ")):
            error.message = re.sub(rf"\b{spec.name}\b", spec.name.replace("-", "_"), error.message)
    return error


def _call_with_names(function, *args):
    try:
        return function(*args)
    except Error as error:
        raise _with_names(error)


def _weakly(trainer, name):
    """A function that calls a method of the trainer, which it doesn't keep alive."""
    reference = weakref.ref(trainer)
    return lambda *args: getattr(reference(), name)(*args)


def _for_c(trainer, name):
    """The same for C, which may add user data."""
    method = _weakly(trainer, name)
    return lambda *args: call_back(method, *args)


@override
class Trainer(Ebb.Trainer):
    """One training: `ebb.Trainer(model, data, steps=1000, memory="2GiB").run()`.

    data: an ebb.TextDataset or another dataset, a DataLoader or another iterable of batches, or a function of a batch's
        number. A batch is (tokens, targets), a dict with them, Hugging Face's input_ids and labels, or what loss reads.
    optimizer: by default an AdamW of learning_rate (3e-4) and weight_decay, which spares norms and biases.
    loss: a function of the model and a batch that returns the mean loss, or (loss, {"name": tensor}).
    memory: what the training keeps within, as "2GiB", "auto" or an ebb.MemoryBudget; allow: the concessions that it may
        make, as "micro-batches" or "all".
    schedule: "cosine", "constant" or an ebb.Schedule; warmup: steps, or a share of them, in which the rate rises.
    evaluate: held-out data, of the same kinds as data. resume: the folder of the state, which is continued.
    lora: the rank of an adapter, or an ebb.LoraOptions. seed: for the random numbers of the training.
    on_step, on_evaluate, on_save, on_note: functions of a Step, an Evaluation, a path, a text; False ends the training.
    progress: whether run() shows how far it is. The other settings are those of ebb.TrainerOptions.
    """

    __module__ = "gi.overrides.Ebb"
    on_step = on_evaluate = on_save = on_note = None
    _batches = _evaluated = _loss = _reader = _progress = _interruption = _failure = _last = _resume = None
    _is_shown, _is_first, _n_summed, _has_ranks = False, True, 1, False

    def __new__(cls, model, data=None, **options):
        given = translate("Trainer", {**({} if data is None else {"data": data}), **options})
        data = given.pop("data", None)
        own, settings = _split("Trainer", _options, _OWN, given)
        _check_optimizer(own)
        return _make(model, data, own, settings)

    def __init__(self, *args, **kwargs):
        pass  # all is done

    @staticmethod
    def new_within(budget, make):
        """The trainer that make() returns, within a budget, as "2GiB".

        make: a function of the ebb.Concessions that are taken, which makes the model, its optimizer, data, and an
        ebb.Trainer. It is called in dry runs first, so a budget that is too small is refused before anything is
        allocated.
        """
        tried = []  # the data of dry runs, which have taken a batch

        def make_anew(taken, *_):
            while tried:
                tried.pop().rewind()
            trainer = call_back(make, taken)
            source = getattr(trainer, "_batches", None)
            if Ebb.is_dry_run() and isinstance(source, LoaderBatches):
                tried.append(source)
            return trainer

        try:
            return _new_within(_to_budget("new_within", budget, None), make_anew)
        finally:
            while tried:
                tried.pop().rewind()

    def __init_subclass__(cls, **_):
        raise TypeError(f"{cls.__name__} can't be derived from ebb.Trainer: give it functions, as on_step=, instead")

    def __enter__(self):
        self.prepare()
        return self

    def __exit__(self, kind, failure, _traceback):
        if failure is not None and self._has_ranks and not self.is_failure_shared:
            return  # the other ranks wait elsewhere
        try:
            self.finish()
        except Error as other:
            if failure is None:
                raise
            self._say(other.message)  # the failure goes on
        if isinstance(failure, KeyboardInterrupt):
            self._say_stopped()

    def __iter__(self):
        """Runs steps; after each its Step."""
        self.prepare()
        while not self.is_done():
            yield self.run_step()
        self.finish()

    # -- running

    def run(self, steps=None):
        """Runs all steps that are left, and saves; returns the report, a dict. steps: goes on to that step.

        Ctrl-C ends it after the running step, whose state is saved, with KeyboardInterrupt; a second one breaks the
        step off.
        """
        if steps is not None:
            self.steps = steps
            if isinstance(self._batches, LoaderBatches):
                self._batches.n_epochs = None
        self._is_shown = self._progress is not None
        try:
            self._call(_run)
        except KeyboardInterrupt as failure:
            if failure.__cause__ is None:
                self._say_stopped()
            raise
        finally:
            self._is_shown = False
            if self._progress is not None:
                self._progress.end()
        return self.report

    def prepare(self):
        """Finds the state, plans, and locks folders; run() and the first step do it."""
        self._call(_prepare)

    def run_step(self):
        """Runs one step and what is due after it; returns a Step."""
        self.prepare()
        self._call(_run_step)
        return self._last

    def is_done(self):
        """Whether no step is left; to see the end of the data, it takes the next batch."""
        with self._interruptible():
            return _is_done(self)

    def finish(self):
        """Waits for the device, saves the state, and unlocks folders."""
        self._call(lambda trainer, _: _finish(trainer))

    def evaluate(self, data=None):
        """The loss of an ebb.TextDataset or another dataset; without it, that of the trainer's held-out data."""
        return self._call(_evaluate, data)[1]

    def _say_stopped(self):
        resumes = f", and so does the program that is started again, from the state in {self._resume}" \
            if self._resume is not None else "; with resume=\"state\" the program, started again, would go on, too"
        self._say(f"Stopped after step {self.step}: run() goes on{resumes}")

    @contextlib.contextmanager
    def _interruptible(self):
        """Has Ctrl-C wait for the end of a step."""
        if self._interruption is not None:
            yield self._interruption
            return
        with Interruption() as self._interruption:
            interruption = self._interruption
            try:
                yield interruption
            finally:
                self._interruption = None
        if interruption.failure is not None:
            raise interruption.failure

    def _call(self, function, *args):
        """Calls a function of C whose last argument is a cancellable."""
        with self._interruptible() as interruption:
            try:
                return function(self, *args, interruption.cancellable)
            except Error as error:
                failure, self._failure = self._failure or interruption.failure or _with_names(error), None
                if failure is interruption.failure and not error.matches(Gio.io_error_quark(), _CANCELLED):
                    failure.__cause__ = error  # what kept the state from being saved
            except BaseException:  # of the user's code
                self._failure = None
                raise
            try:
                raise failure
            finally:
                del failure

    # -- what C calls

    def _call_user(self, function, *args):
        return function(*args) if self._interruption is None else self._interruption.call(function, *args)

    def _take_batch(self, number, *_):
        source = self._batches
        if not isinstance(source, LoaderBatches):
            return self._give(source, number)
        if number > 0 and not source.starts:
            source.load_values((self.get_values() or {}).get("loader", []))
        n_starts = len(source.starts)
        result = self._give(source, number)
        if len(source.starts) != n_starts:
            source.forget(number - 2 * self._n_summed)  # earlier steps are saved
            self.set_values({"loader": source.get_values()})
        return result

    def _take_evaluated(self, number, *_):
        return self._give(self._evaluated, number)

    def _give(self, source, number):
        try:
            batch = self._call_user(source.take, number)
            is_end = isinstance(batch, collections.abc.Mapping) and not batch
            values = {} if is_end else self._reader.read(source.label, batch)
            return pack_result(copy_tensors(values) if self._n_summed > 1 else values)  # C takes all of a step first
        except BaseException as failure:
            self._failure = failure  # which C may report by a later call
            raise

    def _compute_loss(self, model, batch, *_):
        result = self._call_user(self._loss, model, self._reader.restore(unpack_result(batch)))
        loss, metrics = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
        if not isinstance(loss, Tensor) or not isinstance(metrics, dict):
            raise TypeError(f"loss returned {show(result)}: it must be a tensor of one number, or (tensor, {{\"name\": "
                            "tensor})")
        for name, value in metrics.items():
            self.add_metric(name, value if isinstance(value, Tensor) else tensor(float(value)))
        return loss

    # -- what C tells

    def _handle(self, function, *args):
        """Runs a handler of a signal; what it raises comes out of the call that runs."""
        try:
            function(*args)
        except BaseException as failure:
            self._failure = self._failure or failure
            self.fail(as_plain_failure(failure))

    def _tell(self, function, value):
        """Calls one of the user's functions, if there is one."""
        if function is None:
            return
        if self._progress is not None:
            self._progress.clear()
        if self._call_user(function, value) is False:
            self.stop()

    def _note_step(self, number, loss):
        self._last = Step(number, loss, self.learning_rate, self.get_metrics() or {})
        self._tell(self.on_step, self._last)
        if self._is_shown:
            self._progress.show(self, self._is_first)
        self._is_first = False

    def _note_evaluation(self, *values):
        evaluation = Evaluation(*values)
        if self._is_shown:
            self._progress.say(str(evaluation))
        self._tell(self.on_evaluate, evaluation)

    def _note_phase(self, *_):
        if self._interruption is not None:
            self._interruption.check()

    def _say(self, text):
        if self._progress is not None:
            self._progress.say(text)
        self._tell(self.on_note, text)

    # -- results

    @property
    def report(self):
        """Losses, times and memory of the training so far: the same as a program's --report."""
        return json.loads(self.to_json())

    @property
    def losses(self):
        """The loss of each step that this trainer has taken."""
        return self.report["losses"]

    def plot(self, ax=None):
        """Draws the losses, and those of held-out data, by matplotlib; returns the axes. ax: where to draw."""
        if ax is None:
            try:
                from matplotlib import pyplot
            except ImportError as error:
                raise ImportError("plot() needs matplotlib: install it by `pip install matplotlib`, or Debian's "
                                  "python3-matplotlib") from error
            ax = pyplot.subplots()[1]
        losses, measured = self.report["losses"], self.report["evaluations"]
        ax.plot(range(self.step - len(losses) + 1, self.step + 1), losses, label="loss")
        if measured:
            ax.plot([one["step"] for one in measured], [one["loss"] for one in measured], "o-", label="held out")
            ax.legend()
        ax.set_xlabel("step")
        ax.set_ylabel("loss")
        return ax


_options.show(Trainer.__new__)
add_attributes(Trainer)


def _follow_steps(trainer, function, own):
    """Has a schedule that was given by name end with the trainer's steps, also where they are raised."""
    if not isinstance(own["schedule"], str):
        return

    def renew(self, _):
        if self.steps >= 0:
            self.schedule = _to_schedule(function, own["schedule"], own["warmup"], self.steps)

    trainer.connect("notify::steps", renew)


def _watch(trainer, own, settings):
    """Has the trainer show its progress, and call the user's functions, by handlers that don't keep it alive."""
    for name in ("on_step", "on_evaluate", "on_save", "on_note"):
        setattr(trainer, name, own[name])
    trainer._progress = Progress() if own["progress"] else None
    trainer._resume, trainer._has_ranks = settings.get("resume"), "mesh" in settings
    for signal, name in (("stepped", "_note_step"), ("evaluated", "_note_evaluation"), ("phase", "_note_phase")):
        trainer.connect(signal, lambda self, *args, name=name: self._handle(getattr(self, name), *args))
    trainer.connect("saved", lambda self, path: self._handle(self._tell, self.on_save, path))
    trainer.connect("note", lambda self, text: self._handle(self._say, text))


def _make_source(label, data, n_epochs, repeats):
    return data if isinstance(data, Ebb.Dataset) else make_batches(label, data, n_epochs, repeats)


def _make(model, data, own, options):
    if not isinstance(model, Ebb.Module):
        raise TypeError(f"Trainer(): model is {show(model)}: it must be a module")
    if data is None:
        raise TypeError("Trainer() needs data: a dataset, a DataLoader or another iterable of batches, or a function "
                        "of a batch's number")
    source = _make_source("data", data, None, next((n for n in ("resume", "mesh") if n in options), None))
    evaluated = own["evaluate"]
    if evaluated is not None:
        evaluated = _make_source("evaluate", evaluated, 1, "evaluate_every")
    loss = _find_loss(model, own["loss"])
    if not any(isinstance(part, Ebb.Dataset) for part in (source, evaluated)):
        for name in ("batch_size", "context"):
            if options.get(name):
                raise ValueError(f"Trainer(): {name} is {show(options[name])}, and data gives batches as large as they "
                                 "are: leave it out")
    n_steps = _count_steps(model, source, options)
    if isinstance(source, LoaderBatches):
        _set_epochs(source, options, n_steps)
    schedule = _to_schedule("Trainer", own["schedule"], own["warmup"], n_steps)
    made = _options.make("Trainer", options)
    made.set_property("budget", _to_budget("Trainer", own["memory"], own["allow"]))
    made.set_property("schedule", schedule)
    if isinstance(evaluated, Ebb.Dataset):
        made.set_property("evaluate", evaluated)
    if own["seed"] is not None:
        Ebb.manual_seed(own["seed"])
    if own["lora"] is not None:
        add_adapter(model, **{"options" if isinstance(own["lora"], Ebb.LoraOptions) else "rank": own["lora"]})
    self = _call_with_names(_new, model, own["optimizer"], source if isinstance(source, Ebb.Dataset) else None, made)
    for name in ("learning_rate", "weight_decay"):
        if own[name] is not None:
            setattr(self.optimizer, {"learning_rate": "lr"}.get(name, name), own[name])
    _set_parts(self, model, source, evaluated, loss, own, options)
    return self


def _set_epochs(source, options, n_steps):
    """How often a loader's batches are taken; C counts steps alone."""
    epochs = options.get("epochs")
    if options.get("steps") is None:
        options.pop("epochs", None)
        source.n_epochs = math.ceil(epochs or 1)
        if n_steps is not None:
            options["steps"] = n_steps
        elif source.n_epochs != (epochs or 1):
            raise ValueError(f"Trainer(): epochs is {epochs}, and data has no length: set steps")


def _set_parts(self, model, source, evaluated, loss, own, options):
    """What a trainer knows in Python, and the functions that it has for C."""
    self._batches, self._evaluated, self._loss = source, evaluated, loss
    self._reader = BatchReader(own["loss"] is not None, isinstance(model, Ebb.Bert))
    self._n_summed = options.get("accumulate", 1)
    if not isinstance(source, Ebb.Dataset):
        self.set_batch_func(_for_c(self, "_take_batch"))
    if evaluated is not None and not isinstance(evaluated, Ebb.Dataset):
        self.set_evaluate_func(_for_c(self, "_take_evaluated"))
    if loss is not None:
        self.set_loss_func(_for_c(self, "_compute_loss"))
    for part in (source, evaluated):
        if isinstance(part, LoaderBatches):
            part.note = _weakly(self, "_say")
    _watch(self, own, options)
    _follow_steps(self, "Trainer", own)


def _find_loss(model, loss):
    """The function of Python that computes the loss; None for the model's own in C."""
    if loss is not None or isinstance(model, (Ebb.Gpt, Ebb.Bert)):
        return loss
    if not callable(getattr(model, "loss", None)):
        raise TypeError(f"Trainer(): a {type(model).__name__} has no loss of its own: write loss=, a function of the "
                        "model and a batch, or give the class a method loss(tokens, targets)")
    return _call_own_loss


def _call_own_loss(model, batch):
    return model.loss(**{name: value for name, value in batch.items() if name != "weight"})


# -- fine-tuning -------------------------------------------------------------------------------------------------------

def _list_files(data):
    files = [data] if isinstance(data, (str, os.PathLike)) else data
    if not isinstance(files, (list, tuple)) or not files or not all(isinstance(f, (str, os.PathLike)) for f in files):
        raise TypeError(f"finetune(): data is {show(data)}: it must be the path of a file, or a list of them")
    return [os.fspath(file) for file in files]


@_finetune_options.show
def finetune(model, data, out=None, **options):
    """Tunes the model of a folder on files, and saves it; returns the ebb.Trainer, which has finished.

    model: a folder in Hugging Face's format, or a .gguf file, which is only read. data: text, or JSON lines with
    messages, prompts and completions, or texts, in a file or a list of files. out: where the model is saved, or the
    adapter alone; None: nowhere. lora: the rank of an adapter, or an ebb.LoraOptions. held_out: a share of the data, as
    0.05, or a file; out then has the weights whose loss on it is the least. memory: what the training keeps within, as
    "2GiB"; allow: the concessions that it may make, all of them by default. Other keywords are those of ebb.Trainer()
    and of ebb.FinetuneOptions; what is left open is chosen by the model and the data.
    """
    own, settings = _split("finetune", _finetune_options, _SHARED, translate("finetune", options))
    files, lora = _list_files(data), settings.pop("lora", None)
    if lora is not None and settings.get("lora_rank") is not None:
        raise ValueError(f"finetune(): lora is {show(lora)} and lora_rank is {show(settings['lora_rank'])}: set one of "
                         "both")
    if lora is not None:
        settings["lora" if isinstance(lora, Ebb.LoraOptions) else "lora_rank"] = lora
    made = _finetune_options.make("finetune", settings)
    allow = "all" if own["allow"] is None and own["memory"] is not None and not isinstance(
        own["memory"], Ebb.MemoryBudget) else own["allow"]
    made.set_property("budget", _to_budget("finetune", own["memory"], allow))
    made.set_property("schedule", _to_schedule("finetune", own["schedule"], own["warmup"], settings.get("steps")))
    trainer = _call_with_names(open_folder, _finetune_new, get_path("finetune", model), files, _to_path(out), made)
    _watch(trainer, own, settings)
    _follow_steps(trainer, "finetune", own)
    try:
        trainer.run()
    except KeyboardInterrupt:
        if trainer.losses:  # out gets what there is
            trainer.prepare()
            trainer.finish()
        raise
    return trainer
