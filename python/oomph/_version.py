"""The version of this package: that of the command and of the extension module, which must agree."""

VERSION = "0.1.0"
