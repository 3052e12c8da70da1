"""The command `anabranch`, also as `python -m anabranch`."""

import sys


def main() -> None:
    try:
        from anabranch import cli  # takes a moment, in which a Ctrl-C is one line as later

        cli.main(prog_name="anabranch")
    except KeyboardInterrupt:
        print("anabranch: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
