"""Names that Hugging Face has for settings of a training: those that are taken, and what to write for the others."""

from gi.overrides._ebb_check import show

# Settings that mean the same under another name: theirs, and the one here.
TAKEN = {
    "train_dataset": "data", "eval_dataset": "evaluate", "max_steps": "steps", "num_train_epochs": "epochs",
    "gradient_accumulation_steps": "accumulate", "max_grad_norm": "clip", "eval_steps": "evaluate_every",
    "save_steps": "save_every", "lr_scheduler_type": "schedule", "warmup_steps": "warmup", "bf16": "dtype"}

_OPTIMIZER = "write optimizer=ebb.AdamW(model, 3e-4, betas=(0.9, 0.999), eps=1e-8)"
_CHECKPOINTS = ("write memory=\"4GiB\", which plans what is recomputed, or ebb.checkpoint_wrap_each(model, "
                "ebb.TransformerBlock) before")
_COMPILE = "leave it out: models run as they are"
_FUSED = "leave it out: losses, norms and activations are fused"
_LOG = "write log=\"runs/a\": steps.jsonl, and events for TensorBoard, have each step"
_TRACKER = "write log=\"runs/a\" for TensorBoard, and on_step=, a function, for other trackers"
_LOSS_ALONE = "leave it out: evaluation measures the loss; on_evaluate=, a function, may measure more"
_EVERY = "write evaluate_every=100; the last step is always measured"
_DTYPE = "leave it out: evaluation computes in dtype"
_HUB = "leave it out: write trainer.save_model(\"folder\"), and upload the folder"
_LOADER = "give it to the DataLoader that is data"
_SHARD = "write ebb.fully_shard(model) before, and mesh="
_REPLICATE = "write ebb.replicate(model) before, and mesh="
_BEST = "leave it out: the best weights have the lowest loss of evaluate"
_RANK_0 = "leave it out: rank 0 writes for all"

# What to write for each of the others.
ANSWERS = {
    "output_dir": "write resume=\"state\" for the state, save_best=\"best\" for the best weights, and "
                  "trainer.save_model(\"folder\") for the last ones",
    "per_device_train_batch_size": "write batch_size=, the rows of all ranks together; a DataLoader has its own",
    "per_device_eval_batch_size": "write batch_size=, the rows of all ranks together; a DataLoader has its own",
    "lr_scheduler_kwargs": "write schedule=ebb.CosineSchedule(warmup_steps, total_steps, min_factor)",
    **dict.fromkeys(("optim", "optim_args", "optim_target_modules", "adam_beta1", "adam_beta2", "adam_epsilon",
                     "optimizers"), _OPTIMIZER),
    "average_tokens_across_devices": "leave it out: each target of a step counts the same, on all ranks",
    "label_smoothing_factor": "write loss=, a function that calls ebb.cross_entropy(logits, targets, "
                              "label_smoothing=0.1)",
    "fp16": "write dtype=\"bf16\", which needs no scale of the loss",
    **dict.fromkeys(("bf16_full_eval", "fp16_full_eval"), _DTYPE),
    "tf32": "leave it out: products are of f32, or of bf16 with dtype=\"bf16\"",
    **dict.fromkeys(("activation_checkpointing", "activation_checkpointing_kwargs", "gradient_checkpointing",
                     "gradient_checkpointing_kwargs"), _CHECKPOINTS),
    **dict.fromkeys(("torch_compile", "torch_compile_backend", "torch_compile_mode"), _COMPILE),
    "enable_jit_checkpoint": "leave it out: Ctrl-C saves the state that resume names",
    **dict.fromkeys(("use_liger_kernel", "liger_kernel_config"), _FUSED),
    "use_cache": "leave it out: a training keeps no cache of keys and values",
    "neftune_noise_alpha": "leave it out: there is no noise on embeddings",
    "torch_empty_cache_steps": "write memory=\"4GiB\", which keeps the allocator within the budget, too",
    "auto_find_batch_size": "write memory=\"auto\", allow=\"micro-batches\": the batch stays, and is computed in parts",
    **dict.fromkeys(("logging_strategy", "logging_steps", "logging_first_step", "logging_nan_inf_filter",
                     "logging_dir"), _LOG),
    **dict.fromkeys(("log_on_each_node", "save_on_each_node"), _RANK_0),
    "include_num_input_tokens_seen": "leave it out: trainer.tokens_per_second and the report have the speed",
    **dict.fromkeys(("log_level", "log_level_replica", "disable_tqdm"), "write progress=False for no lines"),
    **dict.fromkeys(("report_to", "run_name", "project", "trackio_space_id", "trackio_bucket_id",
                     "trackio_static_space_id"), _TRACKER),
    **dict.fromkeys(("eval_strategy", "evaluation_strategy", "eval_delay"), _EVERY),
    "eval_on_start": "call trainer.evaluate() before trainer.run()",
    **dict.fromkeys(("prediction_loss_only", "eval_do_concat_batches", "eval_use_gather_object",
                     "eval_accumulation_steps", "include_for_metrics", "batch_eval_metrics", "compute_metrics"),
                    _LOSS_ALONE),
    "save_only_model": "write save_best=\"best\", or call trainer.save_model(\"folder\"), which saves weights alone",
    "save_strategy": "write save_every=100 with resume=\"state\"; the last step is always saved",
    "save_total_limit": "leave it out: the folder of resume has the two newest states",
    **dict.fromkeys(("push_to_hub", "hub_token", "hub_private_repo", "hub_model_id", "hub_strategy", "hub_always_push",
                     "hub_revision"), _HUB),
    "load_best_model_at_end": "write save_best=\"best\", and open that folder afterwards: ebb.open_model(\"best\")",
    **dict.fromkeys(("metric_for_best_model", "greater_is_better"), _BEST),
    "ignore_data_skip": "leave it out: a resumed training takes the batches that follow, and loads no earlier ones",
    "restore_callback_states_from_checkpoint": "leave it out: on_step and the others are functions",
    "full_determinism": "leave it out: the same program gives the same bits",
    "data_seed": "seed the generator of the DataLoader, or the dataset: ebb.TextDataset(files, tokenizer, seed)",
    "use_cpu": "write ebb.set_default_device(\"cpu\") before the model is made",
    **dict.fromkeys(("accelerator_config", "parallelism_config"), "write mesh=, an ebb.Mesh of the ranks"),
    **dict.fromkeys(("dataloader_drop_last", "dataloader_num_workers", "dataloader_pin_memory",
                     "dataloader_persistent_workers", "dataloader_prefetch_factor",
                     "dataloader_multiprocessing_context", "dataloader_in_order", "train_sampling_strategy",
                     "group_by_length", "length_column_name", "data_collator"), _LOADER),
    "remove_unused_columns": "leave it out: keys of a batch that mean nothing to the model are refused by name",
    "label_names": "write loss=, a function of the model and the batch that reads them",
    **dict.fromkeys(("ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers", "ddp_static_graph"),
                    _REPLICATE),
    **dict.fromkeys(("ddp_backend", "ddp_timeout", "local_rank"),
                    "call ebb.init_process_group() before, which knows the ranks, and write mesh="),
    **dict.fromkeys(("fsdp", "fsdp_config", "deepspeed"), _SHARD),
    "debug": "leave it out: `with ebb.profile() as p:` records a step",
    "skip_memory_metrics": "leave it out: trainer.report has the memory",
    **dict.fromkeys(("do_train", "do_eval", "do_predict"), "call trainer.run() or trainer.evaluate()"),
    "resume_from_checkpoint": "write resume=\"state\", the folder that the state is kept in",
    "warmup_ratio": "write warmup=0.03, a share of the steps if it is below 1",
    "args": "write the settings themselves, as steps=1000",
    "callbacks": "write on_step=, on_evaluate=, on_save= or on_note=, functions of one argument",
    "tokenizer": "leave it out: batches have numbers of tokens",
    "processing_class": "leave it out: batches have numbers of tokens",
    "model_init": "make the model before",
    "compute_loss_func": "write loss=, a function of the model and the batch",
}


# The same where ebb.finetune() makes the model, its optimizer, and its loss.
_FINETUNE_ANSWERS = {
    "output_dir": "write out=\"folder\" for the result, and resume=\"state\" for the state",
    **dict.fromkeys((name for name, answer in ANSWERS.items() if answer == _OPTIMIZER),
                    "leave it out: the optimizer is AdamW; ebb.Trainer() takes others"),
    **dict.fromkeys(("label_smoothing_factor", "label_names", "compute_loss_func"),
                    "leave it out: the loss is that of the model; ebb.Trainer() takes others"),
    **dict.fromkeys((name for name, answer in ANSWERS.items() if answer == _CHECKPOINTS),
                    "write memory=\"4GiB\", which plans what is recomputed"),
    **dict.fromkeys((name for name, answer in ANSWERS.items() if answer == _LOADER),
                    "leave it out: rows are packed from the files, in an order of the seed"),
    "data_seed": "write seed=, which the order of the rows depends on",
    "load_best_model_at_end": "write held_out=0.05: out then has the weights whose loss on it is the least"}


def _take_value(theirs, value):
    """The value of a setting under its name here; None where the setting isn't set."""
    if theirs == "bf16":
        if not isinstance(value, bool):
            raise TypeError(f"bf16 is {show(value)}: must be True or False")
        return "bf16" if value else None
    return None if theirs == "max_steps" and value == -1 else value


def translate(function, given):
    """The keywords that a function was given, under the names that the settings have here."""
    taken = {}
    answers = {**ANSWERS, **_FINETUNE_ANSWERS} if function == "finetune" else ANSWERS
    for name, value in given.items():
        if name in answers:
            raise TypeError(f"{function}() has no option {name!r}: {answers[name]}")
        ours = TAKEN.get(name)
        if ours is None:
            continue
        if given.get(ours) is not None:
            raise TypeError(f"{function}() got {ours} and {name}, which mean the same: leave one of both out")
        value = _take_value(name, value)
        if value is not None:
            taken[ours] = value
    return {**{name: value for name, value in given.items() if name not in TAKEN}, **taken}
