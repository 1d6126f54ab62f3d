"""Messages are compared by the values in them: the sentences around the values may change."""


def mentions(message: str, *values: object) -> bool:
    """Whether a message names all of these values, in this order."""
    place = 0
    for value in map(str, values):
        place = message.find(value, place)
        if place < 0:
            return False
        place += len(value)
    return True
