"""Frames that stand in the file of another partition than the one they were written to."""

from __future__ import annotations

import crc32c

from strandline.changelog.embedded.format import HEADER_SIZE
from strandline.changelog.embedded.names import TOPICS, partition_folder, place_of, topic_folder
from strandline.changelog.embedded.scanning import BrokenFrame
from strandline.changelog.embedded.segment import Segment


def folder_of(segment: Segment, broken: BrokenFrame) -> str | None:
    """The folder of the log's partition that a frame without a right checksum belongs to.

    None if its payload is damaged or cut off, or is of another log. A torn write may leave a good
    header with a wrong payload as well, so only a checksum that is right elsewhere tells the two apart.
    """
    header = broken.header
    if header is None or header.version < 2:
        return None
    content = memoryview(segment.file.read(broken.position, header.length))
    if len(content) < header.length:
        return None
    place = header.payload_crc ^ crc32c.crc32c(content[HEADER_SIZE:])
    for topic_id in segment.storage.list_dir(TOPICS):
        for number in segment.storage.list_dir(topic_folder(topic_id)):
            if number.isdecimal():
                folder = partition_folder(topic_id, int(number))
                if place_of(f"{folder}/") == place != segment.place:
                    return folder
    return None
