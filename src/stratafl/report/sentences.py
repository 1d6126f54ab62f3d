"""The sentences of a report, and `Finding`, a sentence with its values.

Statistics and rules decide what there is to say; the words are here. A `Finding` is a sentence with its values, such as
`finding(UNFINISHED, methods=["fedper"])`. Names whose number varies stand behind a colon, so no grammar depends on how
many there are. Tests ask for sentences and their values, never for words.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from stratafl.report.formats import listed

MAX_NAMES = 6  # of methods in a sentence


@dataclass(frozen=True)
class Finding:
    """A sentence, and the values that stand in it by name; a list of names is joined by commas."""

    sentence: str
    values: Mapping[str, object]

    def __str__(self) -> str:
        shown = {name: listed(v, MAX_NAMES) if isinstance(v, list) else v for name, v in self.values.items()}
        return self.sentence.format(**shown)


def finding(sentence: str, **values: object) -> Finding:
    return Finding(sentence, values)


# In short, for readers who are new to federated learning

PERSONALISED_LEADS = "{method} reaches {score} against {against}{doubt}."
ALONE_LEADS = "No method is better than training alone here: it reaches {score}, {others}{doubt}."
SHARED_LEADS = "One shared model is best here: {method} reaches {score}, {others}{doubt}."
AS_GOOD_CLAUSE = "; its lead over {methods} is not certain"
ONE_SEED_CLAUSE = "; one seed cannot tell whether that is chance"
CLIENTS_GAIN = "With {method}, {better} of {clients} score higher than alone, and {worse} lower."

# The decision: its headline

NO_RUNS = "This report has verdicts but no runs."
NO_SCORE = "No method can be recommended: no run has a score to rank."
ONLY_METHOD = "There is nothing to choose from: {method} is the only method."
TRAIN_ALONE = "Train every client alone ({method}): every federated method here is worse."
TRAIN_ALONE_UNCLEAR = "Train every client alone ({method}): no federated method here is clearly better."
USE = "Use {method}."
USE_KIND = "Use {method}: {kind}."
LEAD_MAY_BE_CHANCE = "Its lead may be due to chance."
MAY_BE_AS_GOOD = "Its lead over {methods} is not certain: more seeds would tell."
USE_NONE = "Use none of these models: they are not better than chance."
USE_NONE_BY = "Use none of these models: their {metric} is not better than chance."
NOT_BY_ANSWERS = "Do not choose by {metric}: the predicted classes are not better than chance."
NOT_BY_METRIC = "Do not choose by {metric}: the predicted probabilities contradict it."

# Why

REACHES = "It reaches a test {metric} of {score}."
SKIPPED = (
    "First in the ranking, but not significantly better than always predicting the most frequent class: {methods}."
)
BEST = "It has the best test {metric}: {score}."
BEST_OF_REST = "Of the other methods it has the best test {metric}: {score}."
RUNNER_UP = "{method} follows with {score}."
SENDS = "All clients together send and receive {size}."
SENDS_NOTHING = "It sends nothing."
SENDS_LESS = (
    "The difference between {best} (test {metric} {top}) and {method} ({score}) is not significant, and {method} sends "
    "less: {size} instead of {more} in all."
)
NEEDS_NO_GUARD = (
    "The difference between {best} (test {metric} {top}) and {method} ({score}) is not significant, and {method} sends "
    "as much and needs no guard."
)

# Scores that are chance

AT_CHANCE = "By {metric}, not significantly better than always predicting the most frequent class ({base}): {methods}."
ALWAYS_ONE_ANSWER = "By {metric}, not better than always predicting the most frequent class: {methods}."
CONTRADICTED = (
    "By {metric}, {method} is barely better than always predicting the most frequent class. These methods are not, "
    "although their probabilities are better: {better}."
)
NO_PREDICTIONS = "AUROC cannot be computed from these runs. Compare again with --metric auroc."
AUROC_AT_CHANCE = "By their probabilities, too, no method is significantly better than chance. AUROC: {scores}."
AUROC_SCORES = "AUROC of their probabilities: {scores}."
COMPARED = "{pair}."
RANK_BY_AUROC = (
    "To rank by AUROC, run: strata report {folders} --metric auroc. The rounds stay those that {metric} selected; to "
    "select them by AUROC, compare again with --metric auroc."
)

# Who gains

NO_LOCAL = "Unknown, because no run trains every client alone. Add {local} to the methods."
GAINS_UNKNOWN = "Unknown: {reason}."
AGAINST_ALONE = "{method} against training alone: of {clients}, {better} better and {worse} worse. {mean}."
IN_PARTITIONS = "The clients of {partitions} partitions are counted separately."
SURELY_BETTER = "Surely better, {count}: {names}."
SURELY_WORSE = "Surely worse, {count}: {names}."
BY_CHANCE = "Chance alone would give about {count} of the better ones, and {count} of the worse."
TOO_FEW_TO_NAME = "Test samples are too few to say so of single clients: half of them have at most {samples}."
CHANCE_UNKNOWN = "Some of these differences may be due to chance."
LOWER_SCORES = "Lower scores: {names}."
NEW_CLIENTS_REACH = "Clients that join later reach {score} after one round of training."

# How sure

SURELY_BETTER_THAN = "It is significantly better than {methods}."
NOT_SIGNIFICANT = "The difference from these methods is not significant: {methods}."
SURELY_WORSE_THAN = "It is significantly worse than {methods}."
SAME_AS = "It has the same scores in every round as {methods}."
ONE_SEED_TELLS_NOTHING = "Unknown: one seed cannot tell a difference from chance. Repeat with --seeds 3 or more."
RESTS_ON = "This is based on {seeds} and {clients}."
RESTS_ON_ONE_SEED = "This is based on one seed and {clients}; other seeds may differ."
ABOUT_THESE_CLIENTS = "It applies to these clients, not to others like them."
NO_SEED_IN_COMMON = "Unknown: the methods have no seed in common."

# What would change it

REPEAT = "More seeds may show a difference from {method}: repeat with --seeds 3."
TOO_FEW_SAMPLES = "More seeds may not show a difference from {method}: there are too few test samples."
CLIENTS_DISAGREE = "More seeds may not show a difference from {method}: clients differ too much. More clients might."
CONSTANT_DIFFERENCE = "The difference from {method} cannot be tested: all scores differ by the same amount."
TOO_SMALL_TO_SHOW = "The difference from {method} is too small: more than {seeds} further seeds would be needed."
FURTHER_SEEDS = "About {seeds} would show a difference from {method}, if it stays as large."

# Two methods, without a full stop

PAIR_BETTER = "{first} is better than {second} ({evidence})"
PAIR_WORSE = "{first} is worse than {second} ({evidence})"
PAIR_UNCLEAR = "{first} vs {second}: no significant difference ({evidence})"
PAIR_ONE_SEED = "{first} vs {second}: {distance} with one seed, which cannot tell a difference from chance"
PAIR_SAME = "{first} and {second} are the same method here: they have the same scores in every round"
PAIR_APART = "{first} vs {second}: not compared, because they have no seed in common"
PAIR_INTERVAL = "{distance}, 95 % interval {low} to {high}"
OUTLOOK_SAMPLES = "more seeds may not help: too few test samples"
OUTLOOK_CLIENTS = "more seeds may not help: clients differ too much"
OUTLOOK_MANY = "more than {seeds} further seeds would be needed"
OUTLOOK_SEEDS = "about {seeds} would be needed"

# The ranking

FIRST = "{method} comes first with a test {metric} of {score} ({basis})."
SHARED_FIRST = "{method} shares the first place with {others}, at a test {metric} of {score} ({basis})."
ALONE_REACHES = "{method} reaches a test {metric} of {score} ({basis})."
FIRST_BETTER = "It is better than {pairs}."
FIRST_WORSE = "It is worse than {pairs}."
FIRST_UNCLEAR = "The difference from these methods is not significant: {pairs}."
FIRST_SAME = "It has the same scores in every round as {methods}."
FIRST_APART = "It has no seed in common with {methods}."
FIRST_ONE_SEED = "One seed cannot tell whether it is better than {methods}."

# Doubts

SIMPLER = "Simpler models outside the federation score higher than every method: {baselines}. Train longer, or tune."
ONE_ANSWER = "The same class for all samples of a client: {methods}."
NOT_BETTER = "Not better than always predicting a client's most frequent class ({base}): {methods}."
NOT_CLEARLY_BETTER = (
    "Not significantly better than always predicting a client's most frequent class ({base}): {methods}."
)
LEAKING = "Not considered, because test data influences training: {methods}."
DIVERGING = "Training diverged: {methods}. Try a smaller learning rate."
UNFINISHED = "Not finished: {methods}. The order may still change."
RAN_ONCE = "Every method ran once, so differences may be due to chance. Repeat with --seeds 3 or more."
ONE_RATE = "All methods used the same learning rate ({rate}). With a rate tuned for each, the order may change."
TRAINED_BEFORE_USE = (
    "These methods train each client's model once more before use: {methods}. The others do not, "
    "although any method could."
)
UNEQUAL_STEPS = "A round of {most} has {ratio} times the training steps of a round of {least}."
FEW_VALIDATION_SAMPLES = (
    "Rounds were selected on {count} validation samples of all clients, so the selected round is partly chance."
)
MORE_VALIDATION = "Set data.validation={share} for more validation samples."
BEST_TEST_ROUND = "The round was chosen by its test score, which is optimistic."
OTHER_METRIC = "Rounds were selected by {selected}; methods are ranked by {ranked} of the stored predictions."
MORE_NOTES = "See the section Ranking for {notes}."

# Cautions

LEAKS = "{method}: {incomparable} ({reason})."
BEHIND = "{method} is not finished: {done} of {rounds}."
BECAME_NAN = "{method} diverged: its loss, or uploads or models of clients, became NaN or infinite."
SAME_CLASS = "{method} predicts one class for all samples of a client, so its score is not informative."
SAME_CLASS_RANKED = (
    "{method} predicts one class for all samples of a client. Its {metric} says how well probabilities order samples; "
    "to predict classes, it needs another threshold or more training."
)
NOT_EVALUATED = "'{folder}' has no evaluated round yet and is left out."
REPEATED = "'{folder}' repeats a configuration and a seed and is left out."
UNCHECKED = "Without checksums, because an older version wrote them: {runs}. A changed line would go unnoticed."
RESUMED_ELSEWHERE = "'{folder}' was resumed elsewhere and is not bit-identical: {changes}."
UNLIKE_SETTINGS = "The runs differ in {keys}, so the rows of the ranking differ in more than the method."
UNLIKE_SEEDS = "The methods were not all run with the same seeds."
UNLIKE_MACHINES = "The runs come from different {what}: {values}."
LAST_ROUND = "There is no validation split, so scores are those of the last round."
BEST_ROUND = "There is no validation split, so scores are those of the round with the best test score: optimistic."

# Gains, below their table

ADD_LOCAL = "To see which clients gain, add {local} to --algorithms: every method is then compared with it."
EPSILON_MEANS = (
    "{method}: ε = {epsilon} at δ = {delta}, so what {observers} see changes the odds that a client has certain data "
    "by a factor of at most {factor}, except with the probability δ."
)
EPSILON_SIMULATED = "A simulation shows what ε costs and protects no client: its noise follows from the seed."
MEAN_OVER = "Mean: {average}, as in the ranking."
SURE_MEANS = (
    '"Sure" means that the client\'s 95 % interval over {noise} excludes 0; by chance alone about 2.5 % of clients are '
    "surely better and 2.5 % surely worse."
)
PARTITIONS = (
    "There are {partitions} partitions. Client 0 of one is not client 0 of another, so each is counted with its "
    "partition."
)
ONE_SEED_EACH = "Each client has one seed, so intervals leave out the noise of training."
UNDEFINED = "No {metric}, and so no difference: {clients}."
UNPAIRED = "{methods} against {alone}: {reason}."
