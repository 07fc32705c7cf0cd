"""The README's option table is the one that the options themselves render."""

from pathlib import Path

from trigger_core.options import options_table


def test_readme_table_is_generated() -> None:
    readme = (Path(__file__).parents[3] / "README.md").read_text()
    table = readme.split("<!-- options: generated from trigger_core/options.py -->\n")[1].split("<!-- /options -->")[0]
    assert table.strip() == options_table().strip()
