"""A key changes if a declared input changes, and only then."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.evidence.runs import HOST, manifest

from gnomon.harness.evidence.keys import PlannedSuite, differences, key_inputs
from gnomon.harness.evidence.manifest import content_key

WORDS = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=3)
HASHES = st.sampled_from(["a" * 64, "b" * 64, "c" * 64])
DECLARED: dict[str, st.SearchStrategy[Any]] = {
    "flag": st.integers(0, 3),
    "golden_lengths": st.sampled_from([None, [1.5], [1.5, 2.25]]),
    "option": WORDS,
    "env": st.dictionaries(WORDS, WORDS, max_size=1),
    "inherited_env": st.dictionaries(WORDS, WORDS, max_size=1),
    "engine_version": WORDS,
    "source_sha256": HASHES,
    "fingerprint": HASHES,
    "lock_sha256": HASHES,
    "packages": st.dictionaries(WORDS, WORDS, max_size=1),
    "cases_sha256": HASHES,
    "cpus": st.integers(1, 3),
}
UNDECLARED: dict[str, st.SearchStrategy[Any]] = {
    "run_id": WORDS,
    "started": WORDS,
    "recipe_source": WORDS,
    "recipe_name": WORDS,
    "description": WORDS,
    "blockers": st.lists(WORDS, max_size=1),
    "why": WORDS,
    "port": st.integers(1, 9),
    "python": WORDS,
    "hostname": WORDS,
    "reason": WORDS,
    "pid": st.integers(1, 9),
    "commit": HASHES,
}


def inputs_of(value: dict[str, Any]) -> dict[str, Any]:
    """Inputs of a run in which everything a key could depend on is set."""
    env, inherited = value["env"], value["inherited_env"]
    argv = (f"/{value['python']}/gnomon", "--port", str(value["port"]), "-x", value["option"])
    made = manifest(
        run_id=value["run_id"],
        started=value["started"],
        recipe_source=value["recipe_source"],
        recipe={
            "name": value["recipe_name"],
            "description": value["description"],
            "blockers": value["blockers"],
            "forced": value["golden_lengths"],
            "evals": [{"suite": "s"}],
            "engine": {"flags": {"f": {"value": value["flag"], "why": value["why"]}}},
        },
        launch={"argv": argv, "env": env, "inherited_env": inherited, "pid": value["pid"]},
        build={"version": "1", "source_sha256": value["source_sha256"], "commit": value["commit"]},
        clients={"aiperf": {"lock_sha256": value["lock_sha256"], "versions": {}}},
        versions=value["packages"],
        host=HOST.model_copy(update={"hostname": value["hostname"], "cpus": value["cpus"]}),
        reason=value["reason"],
    )
    info = {
        "engine": "gnomon",
        "version": value["engine_version"],
        "facts": {"model_fingerprint": value["fingerprint"]},
    }
    inputs = key_inputs(made, info, [PlannedSuite("s", "chat", value["cases_sha256"])])
    assert inputs is not None
    return inputs


RUNS = st.fixed_dictionaries(DECLARED | UNDECLARED)


def effective_env(run: dict[str, Any]) -> dict[str, str]:
    return {**run["inherited_env"], **run["env"]}


@settings(deadline=None)
@given(RUNS, st.data())
def test_a_key_changes_exactly_when_a_declared_input_does(
    a: dict[str, Any], data: st.DataObject
) -> None:
    redrawn = data.draw(st.sets(st.sampled_from(sorted(DECLARED | UNDECLARED)), max_size=4))
    b = a | {name: data.draw((DECLARED | UNDECLARED)[name], label=name) for name in redrawn}
    plain = DECLARED.keys() - {"env", "inherited_env"}
    same = all(a[name] == b[name] for name in plain) and effective_env(a) == effective_env(b)
    inputs_a, inputs_b = inputs_of(a), inputs_of(b)
    assert (content_key(inputs_a).sha256 == content_key(inputs_b).sha256) == same
    assert (not differences(inputs_a, inputs_b)) == same


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=6,
)
INPUTS = st.dictionaries(st.text(max_size=2), JSON, max_size=3)


@settings(deadline=None)
@given(INPUTS, INPUTS)
def test_there_is_a_difference_exactly_when_the_keys_differ(
    a: dict[str, Any], b: dict[str, Any]
) -> None:
    equal = content_key(a).sha256 == content_key(b).sha256
    assert (differences(a, b) == ()) == equal
    assert [d.path for d in differences(a, b)] == [d.path for d in differences(b, a)]


def test_a_difference_says_where_it_is_and_on_which_side() -> None:
    a = {"recipe": {"flags": {"seed": 0, "old": None}}, "argv": ["x", "--a"], "env": {"T": "1"}}
    b = {"recipe": {"flags": {"seed": False}}, "argv": ["x", "--b"], "env": {"T": "1", "U": "2"}}
    listed = [(d.path, d.a, d.b, d.only_in) for d in differences(a, b)]
    assert listed == [
        ("argv[1]", "--a", "--b", ""),
        ("env.U", None, "2", "b"),
        ("recipe.flags.old", None, None, "a"),
        ("recipe.flags.seed", 0, False, ""),
    ]
    assert [d.path for d in differences({"argv": [1]}, {"argv": [1, 2]})] == ["argv"]
