module portcullis.dev/tests/conformance/backport

go 1.26.0
