// Loads compiled programs of Cilium or Calico and attaches them, as their agents do but without
// what these would write into the maps. They stay until standard input ends.
//
//	others cilium OBJECT ENTRY=HOOK:TARGET …    hooks: ingress, egress, xdp, connect4
//	others calico DIRECTORY PINS                for a host's interface, pinned for tc: from, to
package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
)

func main() {
	log.SetFlags(0)
	var err error
	switch kind, arguments := os.Args[1], os.Args[2:]; kind {
	case "cilium":
		err = cilium(arguments[0], arguments[1:])
	case "calico":
		err = calico(arguments[0], arguments[1])
	default:
		err = fmt.Errorf("%q is neither cilium nor calico", kind)
	}
	if err != nil {
		log.Fatalf("%+v", err)
	}
	fmt.Println("attached")
	io.Copy(io.Discard, os.Stdin)
}

func cilium(object string, places []string) error {
	spec, err := ebpf.LoadCollectionSpec(object)
	if err != nil {
		return err
	}
	// As pkg/bpf/collection.go there: a program says by a tag in which slot it is called.
	for name, program := range spec.Programs {
		function := btf.FuncMetadata(&program.Instructions[0])
		if function == nil {
			continue
		}
		for _, tag := range function.Tags {
			var slot uint32
			if found, _ := fmt.Sscanf(tag, "tail:cilium_calls/%v", &slot); found == 1 {
				calls := spec.Maps["cilium_calls"]
				calls.Contents = append(calls.Contents, ebpf.MapKV{Key: slot, Value: name})
			}
		}
	}
	for _, m := range spec.Maps {
		m.Pinning = ebpf.PinNone
	}
	loaded, err := ebpf.NewCollection(spec)
	if err != nil {
		return err
	}
	for _, place := range places {
		entry, where, _ := strings.Cut(place, "=")
		program, ok := loaded.Programs[entry]
		if !ok {
			return fmt.Errorf("%s has no program %s", object, entry)
		}
		if err := attach(program, where); err != nil {
			return fmt.Errorf("%s: %w", place, err)
		}
	}
	return nil
}

// The links live as long as this process. Cilium attaches by tcx after all others, too
// (pkg/datapath/loader/tcx.go).
func attach(program *ebpf.Program, where string) error {
	hook, target, _ := strings.Cut(where, ":")
	if hook == "connect4" {
		_, err := link.AttachCgroup(link.CgroupOptions{
			Path: target, Attach: ebpf.AttachCGroupInet4Connect, Program: program,
		})
		return err
	}
	device, err := net.InterfaceByName(target)
	if err != nil {
		return err
	}
	if hook == "xdp" {
		_, err = link.AttachXDP(link.XDPOptions{
			Program: program, Interface: device.Index, Flags: link.XDPDriverMode,
		})
		return err
	}
	direction := ebpf.AttachTCXIngress
	if hook == "egress" {
		direction = ebpf.AttachTCXEgress
	}
	_, err = link.AttachTCX(link.TCXOptions{
		Program: program, Attach: direction, Interface: device.Index, Anchor: link.Tail(),
	})
	return err
}

// Indices of programs in the maps (felix/bpf-gpl/jump.h).
var slots = map[string]uint32{
	"calico_tc_main":                    0,
	"calico_tc_skb_accepted_entrypoint": 2,
	"calico_tc_skb_send_icmp_replies":   3,
	"calico_tc_skb_drop":                4,
	"calico_tc_host_ct_conflict":        5,
	"calico_tc_skb_icmp_inner_nat":      6,
	"calico_tc_skb_new_flow_entrypoint": 7,
}

const policySlot uint32 = 1

// The chains that felix makes: preamble, main, policy (one that allows all), and what comes after.
func calico(directory, pins string) error {
	shared := map[string]*ebpf.Map{}
	load := func(name string, prepare func(*ebpf.CollectionSpec) error) (*ebpf.Collection, error) {
		spec, err := ebpf.LoadCollectionSpec(filepath.Join(directory, name))
		if err != nil {
			return nil, err
		}
		if err := prepare(spec); err != nil {
			return nil, err
		}
		replacements := map[string]*ebpf.Map{}
		for name := range spec.Maps {
			if m, ok := shared[name]; ok {
				replacements[name] = m
			}
		}
		for _, m := range spec.Maps {
			m.Pinning = ebpf.PinNone
		}
		loaded, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: replacements})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		for name, m := range loaded.Maps {
			if _, ok := shared[name]; !ok && !strings.HasPrefix(name, ".") {
				shared[name] = m
			}
		}
		return loaded, nil
	}
	asTheyAre := func(*ebpf.CollectionSpec) error { return nil }
	for index, direction := range []string{"from", "to"} {
		// The maps are those of both.
		first := uint32(index) * 40
		programs, err := load(direction+"_hep_fib_no_log.o", asTheyAre)
		if err != nil {
			return err
		}
		policies, err := load("policy_default.o", asTheyAre)
		if err != nil {
			return err
		}
		preamble, err := load("tc_preamble.o", func(spec *ebpf.CollectionSpec) error {
			return spec.Variables["__globals"].Set(globals(first))
		})
		if err != nil {
			return err
		}
		for name, slot := range slots {
			if program, ok := programs.Programs[name]; ok {
				if err := shared["cali_progs3"].Put(first+slot, program); err != nil {
					return err
				}
			}
		}
		allow := policies.Programs["calico_tc_allow"]
		if err := shared["cali_jump3"].Put(first+policySlot, allow); err != nil {
			return err
		}
		pin := filepath.Join(pins, direction)
		if err := preamble.Programs["cali_tc_preamble"].Pin(pin); err != nil {
			return err
		}
	}
	return nil
}

// `struct cali_tc_preamble_globals` of felix/bpf-gpl/globals.h: of IPv4 the slots from the first
// one on; of IPv6 there is no program, so that of IPv4 has its packets.
func globals(first uint32) []byte {
	const one, mtuAt, logFilterAt, jumpsAt, jumps = 256, 16, 92, 96, 40
	bytes := make([]byte, 2*one)
	copy(bytes, net.IPv4(10, 1, 0, 1).To4())
	binary.BigEndian.PutUint16(bytes[mtuAt:], 1450)
	binary.NativeEndian.PutUint32(bytes[logFilterAt:], ^uint32(0))
	binary.NativeEndian.PutUint32(bytes[one+logFilterAt:], ^uint32(0))
	for index := range jumps {
		binary.NativeEndian.PutUint32(bytes[jumpsAt+4*index:], first+uint32(index))
		binary.NativeEndian.PutUint32(bytes[one+jumpsAt+4*index:], ^uint32(0))
	}
	return bytes
}
