"""The engine's metrics in the Prometheus text format."""

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gpu_workers.engine.metrics import create_registry
from tests.engine.conftest import SchedulerDriver


def test_names_types_and_values(driver: SchedulerDriver) -> None:
    driver.result(driver.ask(list(range(40)), max_new_tokens=5))
    driver.scheduler.flush_cache().result(30)
    text = generate_latest(create_registry(driver.scheduler)).decode()
    types = dict(line.split(" ")[2:4] for line in text.splitlines() if line.startswith("# TYPE"))
    assert types == {
        "gyre_engine_running_requests": "gauge",
        "gyre_engine_waiting_requests": "gauge",
        "gyre_engine_weight_version": "gauge",
        "gyre_engine_kv_bytes": "gauge",
        "gyre_engine_steps_total": "counter",
        "gyre_engine_sampled_tokens_total": "counter",
        "gyre_engine_prefilled_tokens_total": "counter",
        "gyre_engine_reused_tokens_total": "counter",
    }
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    values = {sample.name: sample.value for sample in samples}
    assert values.keys() == types.keys(), "no _created series"
    assert values["gyre_engine_sampled_tokens_total"] == 5
    assert values["gyre_engine_prefilled_tokens_total"] == 40
