"""What is written to a disk or a wire by one twin is read by the other."""

import pathlib
import pickle
import shutil

import cloudpickle
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from telling import error_of, plain, tree
from twins import SWITCH, Twin
from zoo import GRAPHS

TWINS = {name: Twin(name) for name in SWITCH}


class Trained(nnx.Module):
  """Layers in a List with statistics, a dropout stream, and Variables with metadata."""

  def __init__(self, seed):
    rngs = nnx.Rngs(seed, dropout=seed + 1)
    self.layers = nnx.List([nnx.Linear(2, 2, rngs=rngs) for _ in range(11)])
    self.norm = nnx.BatchNorm(2, rngs=rngs)
    self.dropout = nnx.Dropout(0.5, rngs=rngs)
    self.scale = nnx.Param(jnp.full(2, float(seed)), note='scale', sharding_names=(None,), eager_sharding=False)

  def __call__(self, x):
    for layer in self.layers:
      x = layer(x)
    return self.dropout(self.norm(x)) * self.scale[...]


@nnx.jit
def step(model, optimizer, x):
  loss, grads = nnx.value_and_grad(lambda model: jnp.sum(model(x) ** 2))(model)
  optimizer.update(model, grads)
  return loss


def trained(seed: int, steps: int = 2):
  model = Trained(seed)
  optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)
  for _ in range(steps):
    step(model, optimizer, jnp.ones((3, 2)))
  return model, optimizer


SUBJECTS = {
  'model': lambda seed: trained(seed)[0],
  'optimizer': lambda seed: trained(seed)[1],
  'both': lambda seed: dict(zip(('model', 'optimizer'), trained(seed), strict=True)),
  'metrics': lambda seed: nnx.MultiMetric(loss=nnx.metrics.Average('loss')),
  'rngs': lambda seed: nnx.Rngs(seed, params=seed),
}


# ---- checkpoints ----


def without_keys(state):
  """Random keys as numbers: not every handler takes keys."""
  return jax.tree.map(
    lambda x: jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x, state
  )


def shapes(state):
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)


def write_state(folder, state):
  with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(folder / 'state', state)


def read_state(folder, state):
  with ocp.StandardCheckpointer() as checkpointer:
    return checkpointer.restore(folder / 'state', shapes(state))


def write_pure(folder, state):
  with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(folder / 'pure', nnx.to_pure_dict(state))


def read_pure(folder, state):
  with ocp.StandardCheckpointer() as checkpointer:
    pure = checkpointer.restore(folder / 'pure')
  nnx.replace_by_pure_dict(state, nnx.restore_int_paths(pure))
  return state


def write_async(folder, state):
  checkpointer = ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler())
  checkpointer.save(folder / 'async', args=ocp.args.PyTreeSave(state))
  checkpointer.wait_until_finished()
  checkpointer.close()


def read_async(folder, state):
  return ocp.PyTreeCheckpointer().restore(
    folder / 'async', args=ocp.args.PyTreeRestore(shapes(state), ocp.checkpoint_utils.construct_restore_args(state))
  )


def write_managed(folder, state):
  with ocp.CheckpointManager(folder / 'managed') as manager:
    for i in range(2):
      manager.save(i, args=ocp.args.StandardSave(state))


def read_managed(folder, state):
  with ocp.CheckpointManager(folder / 'managed') as manager:
    return manager.restore(manager.latest_step(), args=ocp.args.StandardRestore(shapes(state)))


def write_bytes(folder, state):
  folder.joinpath('bytes').write_bytes(flax.serialization.to_bytes(nnx.to_pure_dict(state)))


def read_bytes(folder, state):
  pure = nnx.to_pure_dict(state)
  nnx.replace_by_pure_dict(
    state, flax.serialization.from_bytes(pure, folder.joinpath('bytes').read_bytes())
  )
  return state


def write_pickle(folder, state):
  folder.joinpath('pickle').write_bytes(pickle.dumps(state))


def read_pickle(folder, state):
  return pickle.loads(folder.joinpath('pickle').read_bytes())


FORMS = {
  'state': (write_state, read_state),
  'pure': (write_pure, read_pure),
  'async': (write_async, read_async),
  'managed': (write_managed, read_managed),
  'bytes': (write_bytes, read_bytes),
  'pickle': (write_pickle, read_pickle),
}


def write(say, form, subject, folder):
  node = SUBJECTS[subject](0)
  say(*tree(node))
  FORMS[form][0](pathlib.Path(folder), without_keys(nnx.state(node)))


def read(say, form, subject, folder):
  """Into another seed's model."""
  node = SUBJECTS[subject](1)
  keys = nnx.state(node)
  state = FORMS[form][1](pathlib.Path(folder), without_keys(keys))
  say(plain(state))
  nnx.update(
    node,
    jax.tree.map(
      lambda key, x: (
        jax.random.wrap_key_data(x) if jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key) else x
      ),
      keys,
      state,
    ),
  )
  say(*tree(node))
  if subject == 'both':
    say([float(step(node['model'], node['optimizer'], jnp.ones((3, 2)))) for _ in range(3)])


def run(twin: str, *request) -> list[str]:
  return TWINS[twin].said(__file__, *request)


@pytest.mark.parametrize('subject', SUBJECTS)
@pytest.mark.parametrize('form', FORMS)
def test_crossing(form, subject, tmp_path):
  """What either twin wrote, either reads, and goes on to train the same."""
  written, found = {}, {}
  for writer in SWITCH:
    folder = tmp_path / writer
    folder.mkdir()
    request = {'form': form, 'subject': subject, 'folder': str(folder)}
    written[writer] = run(writer, 'write', request)
    for reader in SWITCH:
      copied = shutil.copytree(folder, tmp_path / f'{writer}-{reader}')
      found[writer, reader] = run(reader, 'read', {**request, 'folder': str(copied)})
  assert written['compiled'] == written['pure']
  for which, lines in found.items():
    assert lines == found['pure', 'pure'], which


@pytest.mark.parametrize('subject', SUBJECTS)
def test_pickled_objects(subject, tmp_path):
  """Models and optimizers themselves."""
  found = {}
  for writer in SWITCH:
    file = str(tmp_path / writer)
    written = run(writer, 'write_object', {'subject': subject, 'file': file})
    for reader in SWITCH:
      found[writer, reader] = [*written, *run(reader, 'read_object', {'subject': subject, 'file': file})]
  for which, lines in found.items():
    assert lines == found['pure', 'pure'], which


def write_object(say, subject, file):
  node = SUBJECTS[subject](0)
  sent = [node, nnx.graphdef(node), nnx.state(node), nnx.to_flat_state(nnx.state(node))]
  with open(file, 'wb') as out:
    cloudpickle.dump((sent, pickle.dumps(sent[2])), out)
  say(*tree(node))


def read_object(say, subject, file):
  with open(file, 'rb') as source:
    (node, graphdef, state, flat), again = pickle.load(source)
  say(*tree(node), plain(graphdef), plain(state), plain(flat), plain(pickle.loads(again)))
  say(graphdef == nnx.graphdef(node), hash(graphdef) == hash(nnx.graphdef(node)))
  say(*tree(nnx.merge(graphdef, state)))
  if subject == 'both':
    say([float(step(node['model'], node['optimizer'], jnp.ones((3, 2)))) for _ in range(3)])


# ---- the same on both twins ----


@pytest.mark.parametrize('kind', GRAPHS)
def test_serialization(say, kind):
  """flax.serialization, of whatever it takes."""
  node = GRAPHS[kind]()

  def there_and_back(value):
    say(plain(flax.serialization.to_state_dict(value)))
    data = flax.serialization.to_bytes(value)
    say(len(data), plain(flax.serialization.msgpack_restore(data)))
    say(plain(flax.serialization.from_bytes(value, data)))

  for value in (lambda: node, lambda: nnx.state(node), lambda: nnx.to_pure_dict(nnx.state(node))):
    say(error_of(lambda value=value: there_and_back(value())))


@pytest.mark.parametrize('kind', GRAPHS)
def test_copies_by_pickle(say, kind):
  node = GRAPHS[kind]()
  for dumps in (cloudpickle.dumps, *[lambda x, n=n: pickle.dumps(x, n) for n in range(6)]):
    say(error_of(lambda dumps=dumps: say(*tree(pickle.loads(dumps(node))))))
    say(error_of(lambda dumps=dumps: say(plain(pickle.loads(dumps(nnx.split(node)))))))


def test_numpy_state(say):
  """A state as NumPy arrays, as many savers take it."""
  model, optimizer = trained(0)
  state = jax.tree.map(np.asarray, without_keys(nnx.state((model, optimizer))))
  say(plain(state))
  nnx.update((model, optimizer), jax.tree.map(jnp.asarray, without_keys(nnx.state((model, optimizer)))))
  say(error_of(lambda: step(model, optimizer, jnp.ones((3, 2)))))


def teardown_module():
  for twin in TWINS.values():
    twin.stop()
