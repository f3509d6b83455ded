"""Version of librdkafka: the C client library that the package confluent-kafka contains."""

import confluent_kafka

from strandline.changelog.errors import MissingDependency

# Earlier versions end reads of a cluster in OffsetOutOfRange, and do not say that a broker's
# certificate or a password was refused. pyproject.toml has the same bound for confluent-kafka.
_LEAST = (2, 16, 0)


def require() -> None:
    """Check that the installed librdkafka is recent enough.

    Raises:
        MissingDependency: It is older than 2.16.
    """
    version, number = confluent_kafka.libversion()  # 0xMMmmrrpp: major, minor, revision
    if (number >> 24, number >> 16 & 0xFF, number >> 8 & 0xFF) < _LEAST:
        raise MissingDependency(
            f"a log on a Kafka cluster needs librdkafka {'.'.join(map(str, _LEAST))} or later, but "
            f"confluent-kafka contains {version}: pip install --upgrade 'confluent-kafka>=2.16,<3'"
        )
