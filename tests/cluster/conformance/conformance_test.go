package conformance

import (
	"testing"

	"sigs.k8s.io/gateway-api/conformance"
)

// TestConformance runs the suite with the options given as flags.
func TestConformance(t *testing.T) { conformance.RunConformance(t) }
