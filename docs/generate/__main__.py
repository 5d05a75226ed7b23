"""`./dev docs`: build the site, serve it, or draw the lab's pictures anew."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import click

from docs.generate.pictures import FOLDER, draw_all

ROOT = Path(__file__).parents[2]
SITE = ROOT / "artifacts" / "site"


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=SITE, help="Where the site goes.")
@click.option("--serve", is_flag=True, help="Serve it afterwards, on this machine.")
@click.option("--port", default=8324, show_default=True, help="Of --serve.")
@click.option("--pictures", is_flag=True, help="Draw the lab's pictures anew: takes minutes.")
def main(out: Path, serve: bool, port: int, pictures: bool) -> None:
    """Build the docs; every warning is an error."""
    if pictures:
        draw_all()
        click.echo(f"The pictures: {FOLDER}")
    options = ["-W", "--keep-going", "--quiet", "--builder", "html"]
    command = [sys.executable, "-m", "sphinx", *options, str(ROOT / "docs"), str(out)]
    code = subprocess.run(command, check=False).returncode
    if code:
        sys.exit(code)
    click.echo(f"The site: {out / 'index.html'}")
    if serve:
        handler = partial(SimpleHTTPRequestHandler, directory=str(out))
        with ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
            click.echo(f"Open http://127.0.0.1:{server.server_port} (Ctrl-C stops it)")
            server.serve_forever()


if __name__ == "__main__":
    try:
        main(standalone_mode=False)
    except click.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
