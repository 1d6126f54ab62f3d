"""Masks and encrypted shares, from X25519, HKDF with SHA-256 and ChaCha20 of `cryptography`.

A seed has 256 bits, and no other generator touches a mask. Every key is for one purpose, one session and one pair of
sites, which its derivation names.
"""

from collections.abc import Iterator
from secrets import token_bytes

import numpy as np
import numpy.typing as npt
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from stratafl.errors import WireError

Numbers = npt.NDArray[np.uint64]  # modulo 2^64
KEY_BYTES = 32
_PIECE = 1 << 17  # numbers
_ZERO_NONCE = bytes(12)  # every key encrypts one message
_NONCE_AND_COUNTER = bytes(16)


def new_secret() -> bytes:
    """A private key, or a seed."""
    return token_bytes(KEY_BYTES)


def public_key(secret: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def shared_key(secret: bytes, theirs: bytes, purpose: bytes) -> bytes:
    """A key that only the two sites know; `purpose` must name the session and the use."""
    try:
        agreed = X25519PrivateKey.from_private_bytes(secret).exchange(X25519PublicKey.from_public_bytes(theirs))
    except ValueError as error:  # a point of small order
        raise WireError("a public key of this session is no usable key: the session stops") from error
    return derived_key(agreed, purpose)


def derived_key(secret: bytes, purpose: bytes) -> bytes:
    return HKDF(hashes.SHA256(), KEY_BYTES, salt=None, info=b"stratafl secure sums 1 " + purpose).derive(secret)


def add_mask(numbers: Numbers, key: bytes, *, subtract: bool = False) -> None:
    """Add the stream of this key to the numbers, in place and modulo 2^64."""
    for part, stream in _streamed(numbers, key):
        if subtract:
            np.subtract(part, stream, out=part)
        else:
            np.add(part, stream, out=part)


def _streamed(numbers: Numbers, key: bytes) -> Iterator[tuple[Numbers, Numbers]]:
    cipher = Cipher(algorithms.ChaCha20(key, _NONCE_AND_COUNTER), mode=None).encryptor()
    for begin in range(0, len(numbers), _PIECE):
        part = numbers[begin : begin + _PIECE]
        yield part, np.frombuffer(cipher.update(bytes(part.nbytes)), "<u8")


def encrypted(key: bytes, text: bytes, about: bytes) -> bytes:
    return ChaCha20Poly1305(key).encrypt(_ZERO_NONCE, text, about)


def decrypted(key: bytes, data: bytes, about: bytes) -> bytes:
    try:
        return ChaCha20Poly1305(key).decrypt(_ZERO_NONCE, data, about)
    except InvalidTag as error:
        raise WireError("a share was changed on its way, or is another site's: the session stops") from error
