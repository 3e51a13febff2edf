// A TLS client: connects for each of the hosts in a file, and prints what it got.
//
//	client ADDRESS AUTHORITY HOSTS CLIENTS
//
// Every fourth connection is TLS 1.2, every third sends its ClientHello in segments.
package main

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const timeout = 30 * time.Second

// segmented sends its first bytes in several segments.
type segmented struct {
	net.Conn
	isBegun bool
}

func (c *segmented) Write(bytes []byte) (int, error) {
	if c.isBegun || len(bytes) < 200 {
		return c.Conn.Write(bytes)
	}
	c.isBegun = true
	written := 0
	for _, end := range []int{3, 60, 150, len(bytes)} {
		n, err := c.Conn.Write(bytes[written:end])
		written += n
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

func ask(address, host string, number int, config *tls.Config) (string, error) {
	tcp, err := net.DialTimeout("tcp", address, timeout)
	if err != nil {
		return "", err
	}
	defer tcp.Close()
	if err := tcp.SetDeadline(time.Now().Add(timeout)); err != nil {
		return "", err
	}
	config = config.Clone()
	config.ServerName = host
	if number%4 == 0 {
		config.MaxVersion = tls.VersionTLS12
	}
	var transport net.Conn = tcp
	if number%3 == 0 {
		transport = &segmented{Conn: tcp}
	}
	connection := tls.Client(transport, config)
	if err := connection.Handshake(); err != nil {
		return "", err
	}
	// The authority's certificates have one name each.
	if names := connection.ConnectionState().PeerCertificates[0].DNSNames; len(names) != 1 || names[0] != host {
		return "", errors.New("another name's certificate")
	}
	if _, err := fmt.Fprintf(connection, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", host); err != nil {
		return "", err
	}
	response, err := http.ReadResponse(bufio.NewReader(connection), nil)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

func main() {
	address := os.Args[1]
	authority, err := os.ReadFile(os.Args[2])
	check(err)
	list, err := os.ReadFile(os.Args[3])
	check(err)
	clients, err := strconv.Atoi(os.Args[4])
	check(err)
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authority) {
		check(errors.New("no certificate of an authority"))
	}
	config := &tls.Config{RootCAs: roots}
	hosts := strings.Fields(string(list))
	results := make([]string, len(hosts))
	numbers := make(chan int)
	var group sync.WaitGroup
	for range clients {
		group.Add(1)
		go func() {
			defer group.Done()
			for number := range numbers {
				host := hosts[number]
				if body, err := ask(address, host, number, config); err != nil {
					text := strings.NewReplacer("\t", " ", "\n", " ").Replace(err.Error())
					results[number] = host + "\terror\t" + text
				} else {
					results[number] = host + "\tanswer\t" + body
				}
			}
		}()
	}
	for number := range hosts {
		numbers <- number
	}
	close(numbers)
	group.Wait()
	output := bufio.NewWriter(os.Stdout)
	for _, result := range results {
		fmt.Fprintln(output, result)
	}
	check(output.Flush())
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
