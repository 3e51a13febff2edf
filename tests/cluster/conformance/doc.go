// Package conformance is the official Gateway API conformance suite, unmodified, as a test binary.
package conformance
