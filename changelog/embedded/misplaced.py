"""Detection of frames in the file of another partition than the one they were written to."""

from __future__ import annotations

import crc32c

from strandline.changelog.embedded.format import HEADER_SIZE
from strandline.changelog.embedded.scanning import BrokenFrame
from strandline.changelog.embedded.segment import Segment
from strandline.changelog.layout import TOPICS, partition_folder, place_of, topic_folder


def folder_of(segment: Segment, broken: BrokenFrame) -> str | None:
    """Return the folder of the partition that a frame with a wrong checksum was written to.

    None if the payload is damaged or cut off, or belongs to another log. A torn write can also
    leave a valid header with a wrong payload. Only a checksum that is valid for another partition
    distinguishes the two cases.
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
