"""What a run of pytest says of each test, read from the report that `--junitxml` writes."""

import pathlib
import xml.etree.ElementTree as ET


def outcomes(report: pathlib.Path) -> list[tuple[str, str]]:
  """(test, passed, skipped or failed) in the report's order, in which a test may stand more than once."""
  return [
    (f'{case.get("classname")}::{case.get("name")}', outcome(case))
    for case in ET.parse(report).getroot().iter('testcase')
  ]


def outcome(case: ET.Element) -> str:
  kinds = {child.tag for child in case}
  return 'failed' if kinds & {'failure', 'error'} else 'skipped' if 'skipped' in kinds else 'passed'
