/* A module written in Vala, wrapped and trained. */
class Doubled : Ebb.Module {
  public Doubled (Ebb.Module inner) throws Error {
    init ();
    register_child ("inner", inner);
  }

  public override Ebb.Tensor forward1 (Ebb.Tensor input) throws Error {
    return Ebb.mul_scalar (Ebb.tanh (get_child ("inner").call1 (input)), 2);
  }
}

enum Way {
  PLAIN,
  WRAPPED,
  SWITCHED,
  CONFIGURED
}

double train (Way way) throws Error {
  Ebb.manual_seed (1);
  var model = new Ebb.Sequential ();
  model.append (new Ebb.Linear (4, 8, true));
  model.append (new Doubled (new Ebb.Linear (8, 2, true)));
  if (way == Way.WRAPPED)
    Ebb.checkpoint_wrapper (model, null);
  else if (way == Way.SWITCHED)
    model.activation_checkpointing = true;
  else if (way == Way.CONFIGURED) {
    Ebb.checkpointing_configure (null, "{\"activation_checkpointing\": {\"cpu_checkpointing\": true}}", null);
    Ebb.checkpoint_wrapper (model, Ebb.checkpointing_get_options ());
  }
  if (model.activation_checkpointing != (way != Way.PLAIN))
    throw new Ebb.EbbError.STATE ("the switch does not tell how the model is wrapped");

  var optimizer = new Ebb.AdamW (model, 0.01);
  var x = Ebb.randn ({ 16, 4 }, Ebb.DType.F32, null, null);
  var targets = Ebb.randint (0, 2, { 16 }, Ebb.DType.I64, null, null);
  double first = 0, last = 0;
  for (int step = 0; step < 10; step++) {
    var loss = Ebb.cross_entropy (model.call1 (x), targets);
    loss.backward ();
    optimizer.step ();
    optimizer.zero_grad ();
    loss.get_item (out last);
    if (step == 0)
      first = last;
  }
  if (last >= first)
    throw new Ebb.EbbError.CALLBACK ("the loss does not fall: %g, then %g", first, last);
  return last;
}

int main () {
  print ("libebb %s\n", Ebb.get_version_string ());
  try {
    var plain = train (Way.PLAIN);
    foreach (var way in new Way[] { Way.WRAPPED, Way.SWITCHED, Way.CONFIGURED }) {
      var wrapped = train (way);
      print ("loss %.9g, wrapped %.9g\n", plain, wrapped);
      if (plain != wrapped)
        return 1;
    }
  } catch (Error e) {
    printerr ("%s\n", e.message);
    return 1;
  }
  return Ebb.check_version (Ebb.MAJOR_VERSION, Ebb.MINOR_VERSION, Ebb.MICRO_VERSION) ? 0 : 1;
}
