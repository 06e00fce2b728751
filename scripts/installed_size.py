"""Install Octavo into a fresh environment and weigh it: `make size`.

Counts what `pip install .` brings, without pip and setuptools; exits with 1 when that reaches the limit.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import venv
from collections import Counter
from pathlib import Path

LIMIT_MB = 200
NOT_COUNTED = ("pip", "setuptools", "wheel", "_distutils_hack", "distutils-precedence.pth", "pkg_resources")


def sizes(site_packages: Path) -> Counter[str]:
    """Bytes by top-level name; `x-1.0.dist-info` and `x.libs` count for x."""
    found: Counter[str] = Counter()
    for path in site_packages.rglob("*"):
        if path.is_file() and not path.is_symlink():
            top = path.relative_to(site_packages).parts[0]
            name = top.removesuffix(".dist-info").partition("-")[0].removesuffix(".libs")
            if name not in NOT_COUNTED:
                found[name] += path.stat().st_size
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", default=str(Path(__file__).parents[1]), help="what to install")
    parser.add_argument("--limit-mb", type=float, default=LIMIT_MB)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / "bin" / "python"
        # A build folder of its own: the usual one belongs to the editable installation.
        install = [python, "-m", "pip", "install", "-q", "-C", f"build-dir={folder}/build", args.source]
        subprocess.run(install, check=True)
        where = subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('platlib'))"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        found = sizes(Path(where))
    total = sum(found.values()) / 1e6
    for name, size in found.most_common(15):
        print(f"{size / 1e6:8.1f} MB  {name}")
    print(f"{total:8.1f} MB  in all (limit {args.limit_mb:g})")
    return 0 if total < args.limit_mb else 1


if __name__ == "__main__":
    sys.exit(main())
