from mutation import ROOT, load_mutants

MUTANTS = {mutant.name: mutant for mutant in load_mutants()}


def test_every_mutant_changes_one_place_of_the_source_and_names_tests() -> None:
    for mutant in MUTANTS.values():
        assert mutant.mutated() != mutant.path.read_text(encoding="utf-8")
        assert mutant.breaks.endswith(".")
        assert mutant.tests
        assert all((ROOT / test.partition("::")[0]).is_file() for test in mutant.tests), mutant.name
    assert len(MUTANTS) == len(load_mutants()), "two mutants of an area share a name"
