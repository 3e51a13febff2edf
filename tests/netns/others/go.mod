module portcullis.dev/tests/others

go 1.24.0

require github.com/cilium/ebpf v0.19.0

require golang.org/x/sys v0.31.0 // indirect
