"""The trainer as its supervisor uses it: load, train, publish, redo; with real Postgres, S3 and Mooncake."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from sqlalchemy import select, update

from db import training
from db.models import BatchRow, CellRow, ContributionRow, MicroStepRow, PolicyVersionRow
from db.object_store import BlobStore
from db.session import Database, transaction
from db.training import Claimant, StoredVersion
from gpu_workers.trainer.checkpoints import fetched
from gpu_workers.trainer.ranks import Ranks
from gpu_workers.trainer.replica import Replica
from gpu_workers.trainer.trainer import Trainer
from gpu_workers.transfer import WeightReader
from gyre.contracts.errors import Fenced, TrainerFailed, TransferFailed
from gyre.contracts.ids import batch_id, cell_id
from gyre.settings import Services
from gyre.settings.runfile import OptimizerSection
from tests.trainer.models import tiny_config
from tests.trainer.rows import BATCH, CLAIMANT, RUN, Turns, add_batch, add_run, run_config

WHOLE = [("grad", [(0, 0), (0, 1)]), ("grad", [(1, 0), (1, 1), (2, 0), (2, 1)])]
CUT = [
    ("score", [(0, 0)]), ("score", [(0, 1)]),
    ("grad", [(0, 0)]), ("grad", [(0, 1)]), ("grad", [(1, 0), (1, 1), (2, 0), (2, 1)]),
]  # fmt: skip
EXECUTIONS = [Turns(1.0), Turns(-1.0), Turns(0.0)]
TRUNCATED: dict[str, object] = {"form": "truncated"}
"""Random behaviour log-probabilities are far from the policy's: ``capped`` would clip nearly everything."""

MakeTrainer = Callable[..., Trainer]


@pytest.fixture
def store(services: Services, database: Database) -> BlobStore:
    return BlobStore(services, database)


@pytest.fixture
def make(database: Database, store: BlobStore, ranks: Ranks) -> Iterator[MakeTrainer]:
    """Return a function that makes a trainer with a new, empty replica, as a new process would have."""
    made = list[Trainer]()

    def trainer(epoch: int = 1, dtype: str = "float32") -> Trainer:
        replica = Replica(tiny_config(tied=True), dtype, OptimizerSection(lr=1e-2), torch.device("cpu"))
        made.append(Trainer(database, store, ranks, replica, Claimant(CLAIMANT.cell, epoch)))
        return made[-1]

    yield trainer
    for trainer_ in made:
        trainer_.close()


@pytest.fixture
def run(database: Database, model_dir: Path) -> None:
    add_run(database, run_config(model_dir, loss=TRUNCATED))


def version(database: Database, number: int) -> StoredVersion:
    with transaction(database) as session:
        found = training.version_of(session, RUN, number)
    assert found
    return found


def stored_weights(database: Database, store: BlobStore, number: int) -> dict[str, torch.Tensor]:
    with fetched(store, version(database, number)) as files:
        return load_file(files.weights_file)


@pytest.mark.usefixtures("run")
def test_version_0_is_the_model_and_is_made_once(
    database: Database, store: BlobStore, make: MakeTrainer, model_dir: Path
) -> None:
    assert make().load(0) == make().load(0) == 0
    stored = stored_weights(database, store, 0)
    model = load_file(model_dir / "model.safetensors")
    assert all(torch.equal(stored[name], model[name]) for name in stored)


@pytest.mark.usefixtures("run")
def test_train_makes_the_version_and_reports_metrics(
    database: Database, store: BlobStore, make: MakeTrainer
) -> None:
    add_batch(database, EXECUTIONS, WHOLE)
    trainer = make()
    trainer.load(0)
    answer = trainer.train(BATCH)
    assert (answer["version"], answer["sha256"], trainer.version) == (1, version(database, 1).sha256, 1)
    metrics = answer["metrics"]
    assert (metrics["num_executions"], metrics["num_with_advantage"], metrics["num_targets"]) == (3, 2, 18)
    assert metrics["grad_norm"] > 0
    assert not metrics["skipped"]
    # Two executions have an advantage, each with two paths: 9 tokens before the last target, 2 of them shared
    assert (metrics["num_tokens"], metrics["num_path_tokens"]) == (2 * 16, 2 * 18)
    assert 0 < metrics["s_min"] <= metrics["s_max"]
    assert set(metrics["seconds"]) == {"score", "grad", "update", "checkpoint"}
    with transaction(database) as session:
        row = session.get_one(BatchRow, BATCH)
        assert (row.status, row.metrics) == ("trained", metrics)
        assert len(session.scalars(select(ContributionRow)).one().sha256) == 64
    before, after = (stored_weights(database, store, v) for v in (0, 1))
    assert any(not torch.equal(before[name], after[name]) for name in before)


@pytest.mark.usefixtures("run")
def test_cut_executions_give_the_same_version(
    database: Database, store: BlobStore, make: MakeTrainer
) -> None:
    add_batch(database, EXECUTIONS, WHOLE)
    trainer = make()
    trainer.load(0)
    whole = trainer.train(BATCH)["metrics"]
    expected = stored_weights(database, store, 1)
    cut_batch(database)
    other = make()
    other.load(0)
    cut = other.train(BATCH)["metrics"]
    found = stored_weights(database, store, 1)
    assert cut["grad_norm"] == pytest.approx(whole["grad_norm"], rel=1e-5)
    assert cut["s_max"] == pytest.approx(whole["s_max"], rel=1e-5)
    # Adam's first step is lr * sign(g): where g is nothing but rounding, weights may differ.
    close = [torch.isclose(found[n], expected[n], atol=1e-5).float().mean() for n in expected]
    assert min(close) > 0.99


def cut_batch(database: Database) -> None:
    """Forget version 1 and cut its first execution into two micro-steps."""
    with transaction(database) as session:
        for table in ("policy_version", "checkpoint"):
            session.connection().exec_driver_sql(f"DELETE FROM {table} WHERE version = 1")
        for table in ("contribution", "micro_step"):
            session.connection().exec_driver_sql(f"DELETE FROM {table}")
        session.execute(update(BatchRow).values(status="open"))
        session.connection().exec_driver_sql("UPDATE query_group SET status = 'assigned'")
        for index, (kind, members) in enumerate(CUT):
            names = [f"run/r/group/1/rollout/{e}/trajectory/{t}" for e, t in members]
            session.add(
                MicroStepRow(batch_id=BATCH, index=index, kind=kind, trajectory_ids=names, num_tokens=0)
            )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_crash_before_the_commit_is_redone_to_the_bit(
    database: Database, make: MakeTrainer, model_dir: Path, dtype: str
) -> None:
    """The second incarnation starts from S3 and Postgres alone, with half of the micro-steps marked done."""
    add_run(database, run_config(model_dir, model={"path": model_dir, "dtype": dtype}, loss=TRUNCATED))
    for number in (1, 2):
        add_batch(
            database,
            [Turns(1.0), Turns(-0.5)],
            [("grad", [(0, 0), (0, 1)]), ("grad", [(1, 0), (1, 1)])],
            version=number,
        )
    first = make(dtype=dtype)
    first.load(0)
    first.train(BATCH)
    expected = first.train(batch_id(RUN, 2))
    with transaction(database) as session:
        session.connection().exec_driver_sql("DELETE FROM policy_version WHERE version = 2")
        session.connection().exec_driver_sql("DELETE FROM checkpoint WHERE version = 2")
        session.connection().exec_driver_sql("UPDATE query_group SET status = 'assigned' WHERE index = 2")
        session.execute(update(MicroStepRow).where(MicroStepRow.index == 1).values(status="claimed"))
        session.execute(update(CellRow).values(epoch=2))
    second = make(epoch=2, dtype=dtype)
    with pytest.raises(TrainerFailed, match="the trainer holds None"):
        second.train(batch_id(RUN, 2))
    second.load(1)
    assert second.train(batch_id(RUN, 2))["sha256"] == expected["sha256"]


@pytest.mark.usefixtures("run")
def test_a_trainer_of_an_old_epoch_makes_no_version(database: Database, make: MakeTrainer) -> None:
    add_batch(database, EXECUTIONS, WHOLE)
    zombie = make()
    zombie.load(0)
    with transaction(database) as session:
        session.execute(update(CellRow).values(epoch=2))
    with pytest.raises(Fenced, match="epoch 1 is over"):
        zombie.train(BATCH)
    with transaction(database) as session:
        assert training.version_of(session, RUN, 1) is None


@pytest.mark.usefixtures("run")
def test_a_batch_that_another_cell_works_on_makes_no_version(database: Database, make: MakeTrainer) -> None:
    """The trainer does the open micro-steps, finds one missing, and still holds the version before."""
    add_batch(database, EXECUTIONS, WHOLE)
    trainer = make()
    trainer.load(0)
    other = Claimant(cell_id(RUN, 1), 1)
    with transaction(database) as session:
        claim = update(MicroStepRow).where(MicroStepRow.index == 1)
        session.execute(claim.values(status="claimed", claimed_by=str(other)))
    with pytest.raises(TrainerFailed, match=r"micro-steps \[1\] are held by another cell"):
        trainer.train(BATCH)
    assert trainer.version == 0


@pytest.mark.usefixtures("run")
def test_train_again_returns_the_same_answer_and_changes_nothing(
    database: Database, make: MakeTrainer
) -> None:
    add_batch(database, EXECUTIONS, WHOLE)
    trainer = make()
    trainer.load(0)
    answer = trainer.train(BATCH)
    assert trainer.train(BATCH) == answer
    late = make()
    assert late.train(BATCH) == answer
    assert late.version == 1
    assert late.publish(1).sha256 == answer["sha256"]


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("executions", [[], [Turns(0.0)]], ids=["M is 0", "no advantage"])
def test_a_batch_without_gradient_still_makes_a_version(
    database: Database, make: MakeTrainer, executions: list[Turns]
) -> None:
    steps = [("grad", [(0, 0), (0, 1)])] if executions else []
    add_batch(database, executions, steps)
    trainer = make()
    trainer.load(0)
    answer = trainer.train(BATCH)
    assert answer["metrics"]["skipped"]
    assert answer["sha256"] == version(database, 0).sha256
    assert answer["version"] == 1


def test_other_terms_train_a_batch_without_advantage(
    database: Database, make: MakeTrainer, model_dir: Path
) -> None:
    add_run(database, run_config(model_dir, loss={"kl_coefficient": 0.1}))
    add_batch(database, [Turns(0.0)], CUT[:4])
    trainer = make()
    trainer.load(0)
    metrics = trainer.train(BATCH)["metrics"]
    assert (metrics["skipped"], metrics["num_with_advantage"], metrics["num_targets"]) == (False, 0, 9)
    assert metrics["grad_norm"] > 0
    assert version(database, 1).sha256 != version(database, 0).sha256


@pytest.mark.usefixtures("run")
def test_published_weights_are_the_committed_ones(
    database: Database, store: BlobStore, make: MakeTrainer
) -> None:
    trainer = make()
    trainer.load(0)
    reference = trainer.publish(0)
    reader = WeightReader()
    pulled = reader.pull(reference)
    stored = stored_weights(database, store, 0)
    assert pulled.sha256 == version(database, 0).sha256
    assert pulled.tensors.keys() == stored.keys()
    assert all(torch.equal(pulled.tensors[name], stored[name]) for name in stored)
    with pytest.raises(TrainerFailed, match="cannot publish version 1"):
        trainer.publish(1)


@pytest.mark.usefixtures("run")
def test_weights_that_were_not_committed_are_not_published(database: Database, make: MakeTrainer) -> None:
    """Memory and Postgres disagree about version 0: nothing stays exposed."""
    trainer = make()
    trainer.load(0)
    reference = trainer.publish(0)
    trainer.release(0)
    with transaction(database) as session:
        session.execute(update(PolicyVersionRow).values(sha256="other"))
    with pytest.raises(TrainerFailed, match="differ from those committed as version 0"):
        trainer.publish(0)
    with pytest.raises(TransferFailed):
        WeightReader().pull(reference)


@pytest.mark.usefixtures("run")
def test_an_unknown_version_or_batch_is_an_error(make: MakeTrainer) -> None:
    trainer = make()
    with pytest.raises(TrainerFailed, match="version 3 of r was never completed"):
        trainer.load(3)
    with pytest.raises(TrainerFailed, match="does not exist"):
        trainer.train(BATCH)
