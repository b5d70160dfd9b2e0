/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/shard/replicate.h"

#include "dist/init.h"
#include "dist/group/process-group-private.h"
#include "nn/module-private.h"
#include "tensor/autograd/autograd-private.h"
#include "tensor/error-private.h"
#include "wrap/gradient-sync.h"
#include "dist/agree-private.h"
#include "wrap/shard/replicate-private.h"

/* Makes a module replicated: an owner of its parameters sees when their gradients are complete, and has them reduced
 * over the ranks. */

static const EbbParameterOwnerFuncs owner_funcs;
static void detach (gpointer data);
static void replica_unref (EbbReplica *self);

/* -- making -------------------------------------------------------------------------------------------------------- */

static GQuark
replica_quark (void)
{
  return g_quark_from_static_string ("ebb-replica");
}

static EbbReplica *
find_replica (EbbModule *module)
{
  return g_object_get_qdata (G_OBJECT (module), replica_quark ());
}

/* The entries are the parameters in reverse order, each once, by its first name. */
static EbbReplica *
replica_new (EbbModule *module,
             EbbProcessGroup *group,
             EbbReplicateOptions *options)
{
  EbbReplica *self = g_new0 (EbbReplica, 1);
  g_autoptr (GHashTable) seen = g_hash_table_new (NULL, NULL);
  g_auto (GStrv) names = ebb_module_get_parameter_names (module, TRUE);
  guint n, position;
  g_autofree EbbTensor **parameters = ebb_module_get_parameters (module, TRUE, &n);

  self->base.funcs = &owner_funcs;
  self->ref_count = 1;
  self->group = g_object_ref (group);
  g_object_get (options, "bucket-bytes", &self->bucket_bytes, "unused-parameters", &self->unused_parameters, NULL);
  self->by_parameter = g_hash_table_new (NULL, NULL);
  self->buckets = g_array_new (FALSE, FALSE, sizeof (EbbReplicaBucket));
  for (guint i = 0; i < n; i++)
    g_hash_table_add (seen, parameters[i]);
  self->n_entries = position = g_hash_table_size (seen);
  self->entries = g_new0 (EbbReplicaEntry, self->n_entries + 1);
  for (guint i = 0; i < n; i++)
    {
      if (!g_hash_table_remove (seen, parameters[i]))
        {
          ebb_tensor_unref (parameters[i]);
          continue;
        }
      position--;
      self->entries[position] = (EbbReplicaEntry){ .name = g_strdup (names[i]), .parameter = parameters[i] };
      g_hash_table_insert (self->by_parameter, parameters[i], GUINT_TO_POINTER (position));
    }
  ebb_replica_update_buckets (self);
  return self;
}

static gboolean
check_parameters (EbbModule *module,
                  EbbReplica *self,
                  GError **error)
{
  if (self->n_entries == 0)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "%s: it has no parameters that ranks could share",
                   ebb_module_get_type_name (module));
      return FALSE;
    }
  for (guint i = self->n_entries; i > 0; i--)
    {
      const EbbReplicaEntry *entry = &self->entries[i - 1];

      if (entry->parameter->owner != NULL)
        {
          g_set_error (error, EBB_ERROR, EBB_ERROR_STATE,
                       "%s: the parameter %s is replicated or sharded over ranks already",
                       ebb_module_get_type_name (module), entry->name);
          return FALSE;
        }
      if (!ebb_view_is_contiguous (&entry->parameter->view))
        {
          g_set_error (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED,
                       "%s: the parameter %s is not contiguous; ranks share contiguous parameters only",
                       ebb_module_get_type_name (module), entry->name);
          return FALSE;
        }
    }
  return TRUE;
}

/* Succeeds on all ranks or on none: a rank that can't be replicated tells the others its @failure. */
static gboolean
begin_with_the_same (EbbModule *module,
                     EbbReplica *self,
                     gboolean broadcasts,
                     const GError *failure,
                     GError **error)
{
  g_autoptr (EbbAgreeTensors) state = ebb_agree_tensors_new ();
  g_autoptr (GString) text = g_string_new (failure != NULL ? failure->message : NULL);
  gboolean ok;

  for (guint i = self->n_entries; i > 0; i--)
    ebb_agree_tensors_add_parameter (state, self->entries[i - 1].name, self->entries[i - 1].parameter);
  ebb_agree_tensors_add_buffers (state, module);
  if (failure == NULL)
    {
      ebb_agree_tensors_describe (state, text);
      g_string_append_printf (text, "bucket-bytes: %" G_GUINT64_FORMAT "\n", self->bucket_bytes);
      g_string_append_printf (text, "unused-parameters: %s\n",
                              self->unused_parameters == EBB_UNUSED_PARAMETERS_ZERO ? "zero" : "error");
      g_string_append_printf (text, "broadcast: %d\n", broadcasts);
    }
  ok = ebb_agree_same_text (self->group, "the module", text->str, failure == NULL ? error : NULL);
  if (failure != NULL)
    g_propagate_error (error, g_error_copy (failure));
  return failure == NULL && ok
         && (!broadcasts
             || ebb_agree_tensors_broadcast (state, self->group, self->bucket_bytes,
                                             "the first values of the replicated module", error));
}

/**
 * ebb_replicate:
 * @module: a module, the same on all ranks except for its values
 * @group: (nullable): the ranks that train it together; %NULL for ebb_process_group_get_default()
 * @options: (nullable): how; %NULL for the defaults
 * @error: return location for an error
 *
 * Trains a module on several ranks, each with its own data: every rank holds all parameters, begins with those of rank
 * 0 (buffers too), and has the mean of all ranks' gradients after each backward pass. If each rank's loss is the mean
 * over the same number of examples, that is the gradient of the mean over all of them. The module's type, properties,
 * parameter names and state dict don't change; optimizers update the parameters of all ranks alike without knowing of
 * each other. All ranks call this together, and then run the same passes and steps.
 *
 * Gradients are reduced in buckets (#EbbReplicateOptions:bucket-bytes), each as soon as the pass has all of its
 * gradients, while the pass continues (Li et al., "PyTorch Distributed: experiences on accelerating data parallel
 * training", 2020). While another graph uses the parameters, because several forwards came before the first backward or
 * the pass retains its graph, the reduction waits for the last pass. ebb_optimizer_step() reduces the gradients that
 * are still local then, and those that passes without sync (see ebb_push_gradient_sync()) have accumulated.
 *
 * A trainable parameter that gets no gradient is an error of the backward pass, which names all of them; or see
 * #EbbReplicateOptions:unused-parameters. Frozen parameters are left out, and so are parameters that are registered
 * later. Checkpoints may be on the module or inside, wrapped before or after: nothing is reduced in a recompute.
 *
 * The module is not kept alive; when it is freed, its parameters have no owner any more.
 *
 * Returns: (transfer full) (nullable): @module; %NULL with %EBB_ERROR_PROCESS_GROUP if the ranks' modules or options
 *   differ or one rank can't do this, which is found before anything is sent; with %EBB_ERROR_STATE if a parameter is
 *   replicated or sharded already, %EBB_ERROR_NOT_SUPPORTED if a parameter, or a buffer to be broadcast, is not
 *   contiguous
 */
EbbModule *
ebb_replicate (EbbModule *module,
               EbbProcessGroup *group,
               EbbReplicateOptions *options,
               GError **error)
{
  g_autoptr (EbbReplicateOptions) used = NULL;
  g_autoptr (GError) failure = NULL;
  gboolean broadcast;
  EbbReplica *self;

  g_return_val_if_fail (module == NULL || EBB_IS_MODULE (module), NULL);
  g_return_val_if_fail (group == NULL || EBB_IS_PROCESS_GROUP (group), NULL);
  g_return_val_if_fail (options == NULL || EBB_IS_REPLICATE_OPTIONS (options), NULL);

  if (!EBB_MAY_BEGIN (error, module))
    return NULL;
  used = options != NULL ? g_object_ref (options) : ebb_replicate_options_new ();
  g_object_get (used, "broadcast", &broadcast, NULL);
  self = replica_new (module, group != NULL ? group : ebb_process_group_get_default (), used);
  check_parameters (module, self, &failure);
  if (!begin_with_the_same (module, self, broadcast, failure, error))
    {
      replica_unref (self);
      return NULL;
    }
  for (guint i = 0; i < self->n_entries; i++)
    self->entries[i].parameter->owner = &self->base;
  g_object_set_qdata_full (G_OBJECT (module), replica_quark (), self, detach);
  return g_object_ref (module);
}

/* -- asking -------------------------------------------------------------------------------------------------------- */

/**
 * ebb_replicate_unwrap:
 * @module: a module
 *
 * Undoes ebb_replicate(): gradients stay as they are, and are this rank's alone from now on.
 *
 * Returns: %FALSE if @module itself is not replicated
 */
gboolean
ebb_replicate_unwrap (EbbModule *module)
{
  g_return_val_if_fail (EBB_IS_MODULE (module), FALSE);

  if (find_replica (module) == NULL)
    return FALSE;
  g_object_set_qdata (G_OBJECT (module), replica_quark (), NULL);
  return TRUE;
}

/**
 * ebb_replicate_is_wrapped:
 * @module: a module
 *
 * Returns: %TRUE if ebb_replicate() was called for @module itself
 */
gboolean
ebb_replicate_is_wrapped (EbbModule *module)
{
  g_return_val_if_fail (EBB_IS_MODULE (module), FALSE);

  return find_replica (module) != NULL;
}

/**
 * ebb_replicate_get_n_buckets:
 * @module: a module
 *
 * Returns: how many reductions one backward pass takes; 0 if @module is not replicated or all of it is frozen
 */
guint
ebb_replicate_get_n_buckets (EbbModule *module)
{
  EbbReplica *self;

  g_return_val_if_fail (EBB_IS_MODULE (module), 0);

  self = find_replica (module);
  if (self == NULL)
    return 0;
  if (!self->is_open)
    ebb_replica_update_buckets (self);
  return self->buckets->len;
}

static char *
show_size (guint64 n_bytes)
{
  return g_format_size_full (n_bytes, G_FORMAT_SIZE_IEC_UNITS);
}

/**
 * ebb_replicate_report:
 * @module: a module
 *
 * Reports in a few lines what is reduced, how often it was, and how long this rank has waited for it. The group knows
 * how much was sent: see ebb_process_group_get_n_bytes().
 *
 * Returns: (transfer full): the text; "" if @module is not replicated
 */
char *
ebb_replicate_report (EbbModule *module)
{
  g_autofree char *in_bucket = NULL;
  g_autofree char *in_pass = NULL;
  g_autofree char *in_all = NULL;
  guint64 n_bytes = 0;
  guint n_buckets, n_trainable = 0;
  EbbReplica *self;

  g_return_val_if_fail (EBB_IS_MODULE (module), NULL);

  self = find_replica (module);
  if (self == NULL)
    return g_strdup ("");
  n_buckets = ebb_replicate_get_n_buckets (module);
  for (guint i = 0; i < self->n_entries; i++)
    if (self->entries[i].bucket != EBB_REPLICA_NO_BUCKET)
      {
        n_trainable++;
        n_bytes += ebb_tensor_get_n_bytes (self->entries[i].parameter);
      }
  in_bucket = show_size (self->bucket_bytes);
  in_pass = show_size (n_bytes);
  in_all = show_size (self->n_bytes);
  return g_strdup_printf ("%s on %u ranks (%s), this is rank %u\n"
                          "%u of %u parameters are trained: %s of gradients in %u buckets of at most %s\n"
                          "reduced %" G_GUINT64_FORMAT " times, %" G_GUINT64_FORMAT
                          " buckets with %s in all; waited %.3f s for them\n",
                          ebb_module_get_type_name (module), ebb_process_group_get_size (self->group),
                          ebb_process_group_get_backend (self->group), ebb_process_group_get_rank (self->group),
                          n_trainable, self->n_entries, in_pass, n_buckets, in_bucket, self->n_sweeps,
                          self->n_reductions, in_all, self->seconds);
}

/* -- the owner of the parameters ----------------------------------------------------------------------------------- */

static EbbReplicaEntry *
find_entry (EbbParameterOwner *owner,
            EbbTensor *parameter)
{
  EbbReplica *self = (EbbReplica *) owner;

  return &self->entries[GPOINTER_TO_UINT (g_hash_table_lookup (self->by_parameter, parameter))];
}

/* Restores a stashed gradient to which nothing was added. */
static void
restore_stashed (EbbReplicaEntry *entry)
{
  if (entry->stashed_grad == NULL || entry->parameter->grad != NULL)
    return;
  entry->parameter->grad = g_steal_pointer (&entry->stashed_grad);
  entry->is_reduced = TRUE;
}

static gboolean
is_in_use (EbbReplica *self)
{
  for (guint i = 0; i < self->n_entries; i++)
    if (self->entries[i].bucket != EBB_REPLICA_NO_BUCKET
        && __atomic_load_n (&self->entries[i].parameter->n_uses, __ATOMIC_RELAXED) != 0)
      return TRUE;
  return FALSE;
}

static gboolean
finish_all (EbbReplica *self,
            gboolean notify,
            GError **error)
{
  gboolean ok = TRUE;

  for (guint i = 0; i < self->buckets->len; i++)
    if (!ebb_replica_finish_bucket (self, i, notify && ok, ok ? error : NULL))
      ok = FALSE;
  return ok;
}

/* error == NULL means that the pass has failed: starts nothing, but waits for reductions in flight, which write to the
 * gradients. */
static gboolean
end_pass (gpointer data,
          GError **error)
{
  EbbReplica *self = data;
  gboolean ok = TRUE;

  self->is_awaiting = FALSE;
  if (error == NULL)
    {
      finish_all (self, FALSE, NULL);
      ebb_replica_close_sweep (self);
    }
  else if (!self->is_detached)
    {
      for (guint i = 0; i < self->n_entries; i++)
        restore_stashed (&self->entries[i]);
      if (self->is_open && ebb_is_gradient_sync_enabled ())
        ok = is_in_use (self) ? finish_all (self, TRUE, error) : ebb_replica_end_sweep (self, TRUE, error);
    }
  replica_unref (self);
  return ok;
}

static void
await_end_of_pass (EbbReplica *self)
{
  if (self->is_awaiting)
    return;
  self->is_awaiting = TRUE;
  __atomic_add_fetch (&self->ref_count, 1, __ATOMIC_RELAXED);
  ebb_backward_call_at_end (end_pass, self);
}

/* Stashes a reduced gradient before more is added to it, unless the group has one rank. */
static gboolean
prepare (EbbParameterOwner *owner,
         EbbTensor *parameter,
         GError **error)
{
  EbbReplica *self = (EbbReplica *) owner;
  EbbReplicaEntry *entry = find_entry (owner, parameter);

  if (entry->in_flight && !ebb_replica_finish_bucket (self, entry->bucket, TRUE, error))
    return FALSE;
  if (parameter->grad == NULL)
    entry->is_reduced = FALSE;
  if (!entry->is_reduced)
    return TRUE;
  entry->is_reduced = FALSE;
  if (ebb_process_group_get_size (self->group) == 1)
    return TRUE;
  g_clear_pointer (&entry->stashed_grad, ebb_tensor_unref);
  entry->stashed_grad = g_steal_pointer (&parameter->grad);
  await_end_of_pass (self);
  return TRUE;
}

static gboolean
unused (EbbParameterOwner *owner,
        EbbTensor *parameter,
        GError **error)
{
  EbbReplica *self = (EbbReplica *) owner;
  EbbReplicaEntry *entry = find_entry (owner, parameter);

  if (!ebb_is_gradient_sync_enabled ())
    return TRUE;
  if (!self->is_open)
    ebb_replica_update_buckets (self);
  if (!ebb_replica_entry_is_local (entry))
    return TRUE;
  self->is_open = TRUE;
  entry->is_ready = TRUE;
  await_end_of_pass (self);
  return ebb_replica_begin_ready (self, error);
}

static gboolean
finalize (EbbParameterOwner *owner,
          EbbTensor *parameter,
          GError **error)
{
  EbbReplica *self = (EbbReplica *) owner;
  EbbReplicaEntry *entry = find_entry (owner, parameter);

  restore_stashed (entry);
  if (!self->is_open && !ebb_replica_entry_is_local (entry))
    return TRUE;
  return ebb_replica_end_sweep (self, FALSE, error);
}

static void
drop_grads (EbbParameterOwner *owner,
            EbbTensor *parameter)
{
  EbbReplica *self = (EbbReplica *) owner;
  EbbReplicaEntry *entry = find_entry (owner, parameter);

  if (entry->in_flight)
    ebb_replica_finish_bucket (self, entry->bucket, FALSE, NULL);
  g_clear_pointer (&entry->stashed_grad, ebb_tensor_unref);
  entry->is_reduced = entry->is_ready = FALSE;
  if (!self->is_open)
    return;
  for (guint i = 0; i < self->n_entries; i++)
    if (self->entries[i].is_ready || self->entries[i].in_flight)
      return;
  ebb_replica_close_sweep (self);
}

static const EbbParameterOwnerFuncs owner_funcs = {
  .prepare = prepare,
  .unused = unused,
  .finalize = finalize,
  .drop_grads = drop_grads,
};

/* -- freeing ------------------------------------------------------------------------------------------------------- */

static void
replica_unref (EbbReplica *self)
{
  if (__atomic_sub_fetch (&self->ref_count, 1, __ATOMIC_ACQ_REL) != 0)
    return;
  ebb_replica_clear_buckets (self);
  g_array_unref (self->buckets);
  g_hash_table_unref (self->by_parameter);
  for (guint i = 0; i < self->n_entries; i++)
    {
      g_free (self->entries[i].name);
      g_clear_pointer (&self->entries[i].stashed_grad, ebb_tensor_unref);
      ebb_tensor_unref (self->entries[i].parameter);
    }
  g_free (self->entries);
  g_object_unref (self->group);
  g_free (self);
}

/* The module is freed or unwrapped; its parameters may live on. */
static void
detach (gpointer data)
{
  EbbReplica *self = data;

  self->is_detached = TRUE;
  finish_all (self, FALSE, NULL);
  for (guint i = 0; i < self->n_entries; i++)
    {
      restore_stashed (&self->entries[i]);
      if (self->entries[i].parameter->owner == &self->base)
        self->entries[i].parameter->owner = NULL;
    }
  replica_unref (self);
}
